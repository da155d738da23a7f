"""The embedded stack: server, scheduler and a local worker over one data folder."""
