"""`probe` is for the processes of a job; imported here it would wrap the estimators of this one."""

collect_ignore = ["probe"]
