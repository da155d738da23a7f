"""Fits the analytic estimate's shape factors to measured programs of several device classes."""
