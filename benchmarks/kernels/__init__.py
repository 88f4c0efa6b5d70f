"""Speed and memory of the kernels, beside verl's own estimators and a plain copy."""
