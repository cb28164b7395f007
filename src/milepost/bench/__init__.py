"""`milepost bench`: what this machine and this store can do, beside SQL written by hand."""
