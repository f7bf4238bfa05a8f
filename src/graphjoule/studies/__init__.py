"""Studies: a table or a figure as a file, the runs it takes, and a ledger that compares them with reference values.

Each name is imported when it is first asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
