"""A test double: importing it is all that the harness asks of torch_npu."""
