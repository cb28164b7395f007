"""A worker whose channel leads to NATS: what a test kills. Takes the store's and NATS's address."""

import sys

import milepost as mp
from milepost.relay.nats import Nats

if __name__ == "__main__":
    app = mp.App(sys.argv[1])
    # Few at once and a short lease, so that many kills fit into few messages.
    app.channel("orders", broker=Nats(sys.argv[2], stream="FINAL"), timeout=0.5, concurrency=2)
    app.run_worker()
