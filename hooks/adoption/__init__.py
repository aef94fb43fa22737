"""Wraps an existing kernel file in a package: what is read from the file, and what is written from that.

`reading` opens the file and chooses the factory, `values` finds the arguments it is called with, `description` puts
together what the package needs to know, `kernel_file` and `texts` write it. Only the text is read: nothing is run.
"""
