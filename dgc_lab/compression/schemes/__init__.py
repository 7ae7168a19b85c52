"""The schemes that can be given by name, a file for each family; `dgc_lab.compression` exports them.

Each is a few lines on top of the core in the folder above, which imports nothing from here. `gallery` lists them all.
"""
