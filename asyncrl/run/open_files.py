"""Open files of this process: a connection is one, and the usual limit is lower than a thousand of them need."""

import logging
import resource

log = logging.getLogger(__name__)


def allow_open_files(wanted: int) -> int:
    """Raise this process's limit to what is wanted, as far as the machine lets it; the limit as it is then.

    A lower limit is no error: it holds as long as fewer connections come.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        return soft
    raised = wanted if hard == unlimited else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    if raised < wanted:
        log.warning(
            "%d files may be open at once, %d are wanted for as many connections: further ones will fail. Raise the "
            "hard limit (ulimit -Hn), or lower gateway.max_sessions",
            raised,
            wanted,
        )
    return raised
