"""Options, levels and the device: see harness/pytest_plugin.py."""

pytest_plugins = ["harness.pytest_plugin"]
