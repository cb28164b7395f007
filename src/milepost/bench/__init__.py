"""`milepost bench`: the speed of a store on this machine, next to hand-written SQL."""
