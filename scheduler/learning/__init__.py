"""The cost model of a device class: trained, evaluated, and kept up to date."""
