"""The engine protocol and its adapters. The lowest floor of the code: it imports nothing from the floors above."""
