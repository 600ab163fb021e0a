"""The tools over MCP: `holdfast mcp`, for any agent that can start an MCP server.

One holdfast session per connection. A client that goes away without a word is a lost one: what it
started goes on for the lease's grace, and the next connection in the same directory is told of it.
Nothing here is imported by anything but that command.
"""
