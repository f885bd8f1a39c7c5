"""What each key may still do this minute, and how many of its requests are under way."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from serving.guard.asgi import Headers
from serving.guard.refusal import Refused, invalid
from serving.keys import Key

_MINUTE = 60.0
_FADE = 0.9  # weight of what went before, in the mean duration of a key's requests


class TokenBucket:
    """Holds a minute's worth at most, and fills evenly. It may be overdrawn by what is settled afterwards."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock()

    def left(self) -> float:
        """What can be taken now."""
        now = self._clock()
        self._level = min(self.per_minute, self._level + (now - self._at) * self.per_minute / _MINUTE)
        self._at = now
        return self._level

    def seconds_until(self, amount: float) -> float:
        """Seconds until `amount` can be taken; 0 when it can now."""
        return max(0.0, (amount - self.left()) * _MINUTE / self.per_minute)

    def take(self, amount: float) -> None:
        """Take `amount`; a negative one gives back."""
        self._level = min(self.per_minute, self.left() - amount)


@dataclass
class _Account:
    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    running: int = 0
    seconds: float = 1.0  # a request of this key takes, on average


@dataclass
class Budgets:
    """The accounts of every key, by id; a key whose limits were changed keeps what it has used."""

    clock: Callable[[], float] = time.monotonic
    _accounts: dict[str, _Account] = field(default_factory=dict)

    def begin(self, key: Key) -> None:
        """Count a request. Raises Refused (429) naming the limit that it meets and when it may come back."""
        account = self._account(key)
        if key.concurrent_requests is not None and account.running >= key.concurrent_requests:
            wait = max(1.0, account.seconds / account.running)
            what = f"{account.running} requests of this key are under way, as many as it may have"
            raise _limited(what, "concurrent_requests", wait)
        if account.requests is not None and (wait := account.requests.seconds_until(1)) > 0:
            what = f"this key may make {account.requests.per_minute} requests a minute"
            raise _limited(what, "requests_per_minute", wait)
        if account.requests is not None:
            account.requests.take(1)
        account.running += 1

    def spend(self, key: Key, tokens: int) -> None:
        """Take the tokens that a request may need. Raises Refused: 400 when the key could never have them, else 429."""
        bucket = self._account(key).tokens
        if bucket is None:
            return
        if tokens > bucket.per_minute:
            message = f"the request may need {tokens} tokens; this key has {bucket.per_minute} a minute"
            raise invalid(message, "max_tokens", "tokens_per_minute")
        if (wait := bucket.seconds_until(tokens)) > 0:
            what = f"this key may use {bucket.per_minute} tokens a minute, has {max(0, int(bucket.left()))} left"
            raise _limited(f"{what} and the request may need {tokens}", "tokens_per_minute", wait)
        bucket.take(tokens)

    def settle(self, key: Key, taken: int, used: int) -> None:
        """Give back what was taken and not used."""
        bucket = self._account(key).tokens
        if bucket is not None:
            bucket.take(used - taken)

    def give_back(self, key: Key) -> None:
        """A request that the server refused for reasons of its own does not count against the key."""
        bucket = self._account(key).requests
        if bucket is not None:
            bucket.take(-1)

    def end(self, key: Key, seconds: float) -> None:
        """A request that `begin` counted is over."""
        account = self._account(key)
        account.running -= 1
        account.seconds = _FADE * account.seconds + (1 - _FADE) * seconds

    def running(self, key: Key) -> int:
        """Requests under way."""
        return self._account(key).running

    def headers(self, key: Key) -> Headers:
        """What is left, under the names that OpenAI gives it."""
        account = self._account(key)
        found: Headers = []
        for name, bucket in ((b"requests", account.requests), (b"tokens", account.tokens)):
            if bucket is not None:
                left = max(0, math.floor(bucket.left()))
                reset = bucket.seconds_until(bucket.per_minute)
                found.append((b"x-ratelimit-limit-" + name, str(bucket.per_minute).encode()))
                found.append((b"x-ratelimit-remaining-" + name, str(left).encode()))
                found.append((b"x-ratelimit-reset-" + name, f"{reset:.3f}s".encode()))
        return found

    def _account(self, key: Key) -> _Account:
        account = self._accounts.setdefault(key.id, _Account())
        account.requests = self._bucket(account.requests, key.requests_per_minute)
        account.tokens = self._bucket(account.tokens, key.tokens_per_minute)
        return account

    def _bucket(self, before: TokenBucket | None, per_minute: int | None) -> TokenBucket | None:
        if per_minute is None or (before is not None and before.per_minute == per_minute):
            return before if per_minute is not None else None
        bucket = TokenBucket(per_minute, self.clock)
        if before is not None:
            bucket.take(before.per_minute - before.left())
        return bucket


def _limited(what: str, code: str, seconds: float) -> Refused:
    message = f"{what}; try again in {math.ceil(seconds)} s"
    return Refused(429, message, code, retry_seconds=seconds)
