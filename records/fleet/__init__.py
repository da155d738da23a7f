"""Workers: their devices, their leases, the libraries that they build and the results that they report."""
