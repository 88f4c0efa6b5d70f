"""verl plug-in of refbase: its estimators under ``algorithm.adv_estimator``, and verl on a CPU."""
