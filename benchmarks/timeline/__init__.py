"""The timeline in a real browser, on runs of up to 1024 ranks."""
