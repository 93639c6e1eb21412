"""Which worker gets a request. Pure: no I/O, no asyncio."""
