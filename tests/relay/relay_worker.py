"""A worker whose channel leads to a broker: what a test kills.

Takes the address of the store and of the broker, the subject, and the seconds of a publication.
"""

import sys

import milepost as mp
from milepost.relay.broker import broker_at

if __name__ == "__main__":
    database, url, subject, seconds = sys.argv[1:]
    app = mp.App(database)
    # Few at once and a short lease, so that many kills fit into few messages.
    app.channel(
        "orders", broker=broker_at(url), subject=subject, timeout=float(seconds), concurrency=2
    )
    app.run_worker()
