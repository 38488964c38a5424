"""The metering gateway: the only way from agents to models. It holds the keys, counts, and ends what is spent."""

from race.gateway.account import Account, Budget, Purse
from race.gateway.exchanges import Exchange, Record
from race.gateway.gateway import Gateway, GatewayAccount, Line, Timeouts
from race.gateway.replaying import Source
from race.gateway.upstream import Upstream

__all__ = [
    "Account",
    "Budget",
    "Exchange",
    "Gateway",
    "GatewayAccount",
    "Line",
    "Purse",
    "Record",
    "Source",
    "Timeouts",
    "Upstream",
]
