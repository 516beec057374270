"""The rules of the contract, each written once: a pure function for each message, which names field, value and rule.

A client checks what it sends and a scheduler what it receives by the same functions.
"""
