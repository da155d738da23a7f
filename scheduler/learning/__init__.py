"""The cost models of device classes: trained, evaluated and kept up to date."""
