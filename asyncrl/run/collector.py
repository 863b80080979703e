"""How often Python looks for cycles in a process with many small objects that live long: an open session is hundreds.

By default every 70,000 objects that outlive two looks have all of them looked at again, imports included: a thousand
sessions stop the process for a tenth of a second each time, and a worker of short answers spends a tenth of its time on
such looks. Reference counts free nearly everything here; what is left are the cycles of tasks and exceptions, which die
young.
"""

import gc

YOUNG_OBJECTS = 20_000
"""Made and not freed, until the young ones are looked at: some milliseconds."""
LOOKS_AT_YOUNG, LOOKS_AT_OLDER = 20, 50
"""Looks at younger objects until older ones are looked at too."""


def spare_what_lives_long() -> None:
    """Leave what there is now out of all looks, and look seldom at what survives. Call it once the parts are made."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, LOOKS_AT_YOUNG, LOOKS_AT_OLDER)
