"""Checks, tests and measures the kernel of this package. Managed by the template: `copier update` replaces it."""
