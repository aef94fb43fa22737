"""Reaching the real TileLang-Ascend compiler: `client.find_compiler` is the way in."""
