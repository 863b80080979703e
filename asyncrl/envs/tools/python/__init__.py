"""The tool `python`: code of the model, run in processes that are cut off from the machine.

process  (worker)  starts the two programs below, gives them code, reads what they print, ends them
confine  (program) puts itself into namespaces of its own with limits, and becomes
cell     (program) runs one piece of code after the other
"""
