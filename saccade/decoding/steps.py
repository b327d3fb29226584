"""Steps, and functions `Step -> Step` that change what a search may do; they compose.

A wrapper that has to remember something puts it beside the inner state at the first call, so a
search is begun with the plain state whatever is wrapped around the step.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from math import inf, log
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.decoding.search import Step
from saccade.errors import ConfigError
from saccade.nn.state import Fixed, shared
from saccade.nn.watch import watch

Tokens = Int[Tensor, "N"]  # the last of each row
LogProbs = Float[Tensor, "N V"]
Decoder = Callable[[Tensor, Any], tuple[Tensor, Any]]  # ((N, T), state) -> ((N, T, V), state)
Rule = Callable[[Tensor, Tensor], Tensor]  # ((N, V) log_probs, (N, t) said so far) -> (N, V)


def stepper(decoder: Decoder, banned: Sequence[int] = ()) -> Step:
    """The step of a decoder: one column in, the next token's log-probabilities out.

    Those that are banned never come; the others keep their log-probabilities.
    """
    columns = list(banned)

    def step(tokens: Tokens, state: Any) -> tuple[LogProbs, Any]:
        logits, state = decoder(tokens[:, None], state)
        logits = logits[:, 0].float()
        own = None if logits.requires_grad else logits  # in its own place: it is large
        log_probs = torch.log_softmax(logits, -1, out=own)
        if columns:
            log_probs[:, columns] = -inf
        return log_probs, state

    return step


def changed(step: Step, change: Callable[[Tensor], Tensor]) -> Step:
    """The same step with its log-probabilities changed, each row by itself."""

    def other(tokens: Tokens, state: Any) -> tuple[LogProbs, Any]:
        log_probs, state = step(tokens, state)
        return change(log_probs), state

    return other


def ban(step: Step, banned: Sequence[int]) -> Step:
    """The same step, but these tokens never come; the others keep their log-probabilities."""
    columns = torch.tensor(banned, dtype=torch.long, device="cpu")
    return changed(step, lambda log_p: log_p.index_fill(1, columns.to(log_p.device), -inf))


# --- what is drawn from, by sampling --------------------------------------------------------------


def tempered(step: Step, temperature: float) -> Step:
    """Probabilities to the power 1 / temperature: below 1 sharper, above 1 flatter."""
    return changed(step, lambda log_probs: (log_probs / temperature).log_softmax(-1))


def top_k(step: Step, k: int) -> Step:
    """Only the k likeliest tokens     Fan et al. 2018, arxiv.org/abs/1805.04833"""

    def change(log_probs: LogProbs) -> LogProbs:
        least = log_probs.topk(min(k, log_probs.size(-1)), -1).values[:, -1:]
        return _keep(log_probs, log_probs >= least)

    return changed(step, change)


def top_p(step: Step, p: float) -> Step:
    """Only the likeliest that together have probability p     Holtzman et al. 2020"""
    return changed(step, lambda log_probs: _smallest_set(log_probs, -log_probs, p))


def typical(step: Step, p: float) -> Step:
    """Only those nearest to the expected surprise, together p     Meister et al. 2023"""

    def change(log_probs: LogProbs) -> LogProbs:
        entropy = -torch.xlogy(log_probs.exp(), log_probs.exp()).sum(-1, keepdim=True)
        return _smallest_set(log_probs, (log_probs + entropy).abs(), p)

    return changed(step, change)


def min_p(step: Step, share: float) -> Step:
    """Only those with at least this share of the likeliest's probability     Nguyen et al. 2024"""
    bound = log(share)
    return changed(step, lambda log_p: _keep(log_p, log_p >= log_p.amax(-1, True) + bound))


def _smallest_set(log_probs: LogProbs, cost: LogProbs, p: float) -> LogProbs:
    """The tokens of lowest cost, up to the one with which their probability reaches p."""
    order = cost.argsort(dim=-1, stable=True)
    cdf = log_probs.gather(-1, order).exp().cumsum(-1)
    before = cdf - log_probs.gather(-1, order).exp()
    kept = torch.zeros_like(log_probs, dtype=torch.bool).scatter(-1, order, before < p)
    return _keep(log_probs, kept)


def _keep(log_probs: LogProbs, kept: Bool[Tensor, "N V"]) -> LogProbs:
    return log_probs.masked_fill(~kept, -inf).log_softmax(-1)


# --- what may be said, by what was said -----------------------------------------------------------


class Said(NamedTuple):
    """A state, and what each row has said up to it."""

    inner: Any
    said: Tensor  # (N, t) tokens


def remember(step: Step, rule: Rule) -> Step:
    """The step under a rule that knows what each row has said so far."""

    def ruled(tokens: Tokens, state: Any) -> tuple[LogProbs, Said]:
        if isinstance(state, Said):
            said = torch.cat([state.said, tokens[:, None]], 1)
            log_probs, inner = step(tokens, state.inner)
        else:
            said = tokens.new_zeros(len(tokens), 0)  # the first token was not said, but given
            log_probs, inner = step(tokens, state)
        return rule(log_probs, said), Said(inner, said)

    return ruled


def at_least(step: Step, end: int, length: int) -> Step:
    """Nothing ends before it has this many tokens."""

    def rule(log_probs: LogProbs, said: Int[Tensor, "N t"]) -> LogProbs:
        if said.size(1) >= length:
            return log_probs
        return log_probs.index_fill(1, torch.tensor([end], device=log_probs.device), -inf)

    return remember(step, rule)


def no_repeat(step: Step, n: int) -> Step:
    """No n tokens in a row come twice."""

    def rule(log_probs: LogProbs, said: Int[Tensor, "N t"]) -> LogProbs:
        if said.size(1) < n:
            return log_probs
        grams = said.unfold(1, n, 1)  # (N, t - n + 1, n)
        again = (grams[:, :, :-1] == said[:, None, said.size(1) - n + 1 :]).all(-1)
        hit = torch.zeros_like(log_probs).scatter_add_(1, grams[:, :, -1], again.to(log_probs))
        return log_probs.masked_fill(hit > 0, -inf)

    return remember(step, rule)


def avoid(step: Step, phrases: Sequence[Sequence[int]]) -> Step:
    """None of these phrases ever comes, whatever its length in tokens."""
    wanted = [list(phrase) for phrase in phrases]

    def rule(log_probs: LogProbs, said: Int[Tensor, "N t"]) -> LogProbs:
        log_probs = log_probs.clone()
        for *beginning, last in wanted:
            n = len(beginning)
            if n > said.size(1):
                continue
            start = torch.tensor(beginning, dtype=torch.long, device=said.device)
            log_probs[(said[:, said.size(1) - n :] == start).all(-1), last] = -inf
        return log_probs

    return remember(step, rule)


def repetition(step: Step, penalty: float) -> Step:
    """Log-probabilities of tokens said before, times the penalty     Keskar et al. 2019"""

    def rule(log_probs: LogProbs, said: Int[Tensor, "N t"]) -> LogProbs:
        again = torch.zeros_like(log_probs, dtype=torch.bool).scatter_(1, said, True)
        return torch.where(again, log_probs * penalty, log_probs)

    return remember(step, rule)


def only(step: Step, end: int, texts: Sequence[Sequence[int]]) -> Step:
    """Nothing but one of these texts can be said: at each step what the tree of them allows."""
    trie: dict[int, Any] = {}
    for text in texts:
        _graft(trie, (*text, end))

    def rule(log_probs: LogProbs, said: Int[Tensor, "N t"]) -> LogProbs:
        allowed = torch.full_like(log_probs, -inf)
        for n, row in enumerate(said.tolist()):
            node: Any = trie
            for token in row:
                if isinstance(node, dict):
                    node = node.get(token, ())
                else:
                    node = node[1:] if node[:1] == (token,) else ()
            following = list(node if isinstance(node, dict) else node[:1])
            some = torch.tensor(following, dtype=torch.long, device=log_probs.device)
            allowed[n, some] = log_probs[n, some]
        return allowed

    return remember(step, rule)


def _graft(trie: dict[int, Any], text: tuple[int, ...]) -> None:
    """Add a text to a tree, in which a branch without forks is one tuple."""
    for i, token in enumerate(text):
        branch = trie.setdefault(token, text[i + 1 :])
        if isinstance(branch, tuple):
            if branch == text[i + 1 :]:  # it is new, or was there before
                return
            trie[token] = branch = {branch[0]: branch[1:]}  # both end alike: neither is empty here
        trie = branch


class Prompted(NamedTuple):
    inner: Any
    prefix: Fixed  # (B, P) tokens, -1 after the last
    at: Tensor  # (N,) how many were said


def prompted(step: Step, prefixes: Sequence[Sequence[int]]) -> Step:
    """Each source's text begins with its prefix, whose tokens keep their log-probabilities."""
    longest = max((len(prefix) for prefix in prefixes), default=0)
    filled = [[*prefix, *[-1] * (longest - len(prefix))] for prefix in prefixes]
    table = torch.tensor(filled, dtype=torch.long, device="cpu")

    def led(tokens: Tokens, state: Any) -> tuple[LogProbs, Any]:
        if not isinstance(state, Prompted):
            rows = table.to(tokens.device).repeat_interleave(len(tokens) // len(prefixes), 0)
            state = Prompted(state, Fixed(rows), torch.zeros_like(tokens))
        log_probs, inner = step(tokens, state.inner)
        t = int(state.at[0])  # all rows have said as much
        if t < longest:
            wanted = shared(state.prefix.tree[:, t], len(tokens))
            alone = torch.full_like(log_probs, -inf)
            column = wanted.clamp(min=0)[:, None]
            alone.scatter_(1, column, log_probs.gather(1, column))
            log_probs = torch.where(wanted[:, None] >= 0, alone, log_probs)
        return log_probs, Prompted(inner, state.prefix, state.at + 1)

    return led if longest else step


class Stoppable(NamedTuple):
    inner: Any
    source: Tensor  # (N,) the number of each row's source


def stoppable(step: Step, end: int, stopped: Sequence[Callable[[], bool]]) -> Step:
    """A source may be given up while it is searched: from then on its rows can only end."""

    def watched(tokens: Tokens, state: Any) -> tuple[LogProbs, Any]:
        if not isinstance(state, Stoppable):
            numbers = torch.arange(len(stopped), device=tokens.device)
            each = len(tokens) // len(stopped)
            state = Stoppable(state, numbers.repeat_interleave(each))
        over = [is_stopped() for is_stopped in stopped]
        log_probs, inner = step(tokens, state.inner)
        if any(over):
            rows = torch.tensor(over, device=tokens.device)[state.source]
            log_probs = log_probs.masked_fill(rows[:, None], -inf)
            log_probs[rows, end] = 0.0
        return log_probs, Stoppable(inner, state.source)

    return watched


def noted(step: Step, note: list[Tensor]) -> Step:
    """The same step, which leaves its last log-probabilities in `note`."""

    def other(tokens: Tokens, state: Any) -> tuple[LogProbs, Any]:
        log_probs, state = step(tokens, state)
        note[:] = [log_probs]
        return log_probs, state

    return other


# --- trees ----------------------------------------------------------------------------------------

# Where a text in brackets stands. A tree is "(" label child ... ")", a child a tree or a word.
START, OPENED, LABEL, CHILDLESS, WORD, APART, CLOSED = range(7)
FAILED = 7
_MOVES: dict[int, dict[str, int]] = {  # by a bracket, a blank, or x: any other character
    START: {"(": OPENED, " ": START},
    OPENED: {" ": OPENED, "x": LABEL},
    LABEL: {" ": CHILDLESS, "x": LABEL},
    CHILDLESS: {"(": OPENED, " ": CHILDLESS, "x": WORD},
    WORD: {")": CLOSED, " ": APART, "x": WORD},
    APART: {"(": OPENED, ")": CLOSED, " ": APART, "x": WORD},  # after a child and a blank
    CLOSED: {"(": OPENED, ")": CLOSED, " ": APART},
}
NEVER = 1 << 30


class Brackets:
    """What each token does to a text in brackets, wherever that stands: tables of (places, V)."""

    def __init__(self, texts: Sequence[str], end: int, silent: Sequence[int]):
        """`texts` are the tokens as they are written, with their blanks; `end` closes a text."""
        found = [[_read(place, text) for text in texts] for place in range(FAILED)]
        self.end = end
        self.after, self.change, self.needs, self.words = (
            torch.tensor([[one[k] for one in row] for row in found], device="cpu") for k in range(4)
        )
        self.after[:, [end, *silent]] = FAILED
        self.cost = self._costs()
        opens = (self.change[START] > 0) & (self.after[START] != FAILED)
        ways = 1 + self.cost[self.after[START]] + (self.change[START] - 1) * self.cost[CLOSED]
        self.whole = int(ways[opens].min()) if bool(opens.any()) else NEVER  # tokens of a tree

    @cached_property
    def word_cost(self) -> int:
        """How many tokens one more word takes, at most, where it can stand."""
        ready, stays = (APART, CLOSED, WORD), (self.after != FAILED) & (self.change == 0)
        begins = stays & (self.words == 1) & (self.after <= APART)
        if all(bool(begins[place].any()) for place in ready):
            return 1
        parts = stays & (self.after == APART) & (self.words == 0)  # a blank first
        both = all(bool((begins | parts)[place].any()) for place in ready) and begins[APART].any()
        return 2 if both else NEVER

    def _costs(self) -> Int[Tensor, "places"]:
        """How many tokens it takes from each place to close the innermost bracket, at least."""
        cost = torch.full((FAILED + 1,), NEVER)
        while True:
            closes = (self.after == CLOSED) & (self.change == -1) & (self.needs <= 1)
            stays = (self.change == 0) & (self.needs <= 1) & (self.after != FAILED)
            ways = torch.where(stays, 1 + cost[self.after], torch.full_like(self.after, NEVER))
            ways = torch.where(closes, torch.ones_like(ways), ways)
            better = torch.cat([ways.amin(1), torch.tensor([NEVER])]).clamp(max=NEVER)
            if bool((better >= cost).all()):
                return cost
            cost = torch.minimum(cost, better)

    @property
    def closable(self) -> bool:
        """Whether every bracket can be closed by tokens that close one at a time."""
        return bool((self.cost[OPENED:FAILED] < NEVER).all())

    def allowed(
        self,
        place: Int[Tensor, "N"],
        depth: Int[Tensor, "N"],
        left: Int[Tensor, "N"],
        due_words: Int[Tensor, "N"] | None = None,
    ) -> Bool[Tensor, "N V"]:
        """Which tokens lead on to a tree that is whole before so many more tokens were said.

        With `due_words` it has so many more words, no more and no fewer.
        """
        after, deep = self.after.to(place.device)[place], depth[:, None]
        then = deep + self.change.to(place.device)[place]
        cost = self.cost.to(place.device)
        due = torch.where(then > 0, cost[after] + (then - 1) * cost[CLOSED], 0)
        due = torch.where(after == START, self.whole, due)
        fine = (after != FAILED) & (deep >= self.needs.to(place.device)[place])
        if due_words is not None:
            lacking = due_words[:, None] - self.words.to(place.device)[place]
            wordless = (after >= OPENED) & (after <= CHILDLESS)  # a bracket that needs one
            fine &= (lacking > 0) | ((lacking == 0) & ~wordless)
            fine &= (then > 0) | (lacking == 0) | (after == START)
            said = wordless | (after == START)  # their cost is also that of one word
            more = (lacking.clamp(min=0) - said.long()) * self.word_cost
            more -= ((after == APART) & (lacking > 0)).long() * (self.word_cost - 1)  # its blank
            due = (due + more).clamp(max=NEVER)
        fine &= due < left[:, None]
        whole = (depth == 0) & ((place == CLOSED) | (place == APART))
        fine[:, self.end] = whole
        return fine


def _read(place: int, text: str) -> tuple[int, int, int, int]:
    """Where a text in brackets stands after a token, what that does to its depth and needs of it,
    and how many words begin.

    FAILED where it cannot be, whatever the depth.
    """
    depth = needs = words = 0
    for char in text:
        kind = char if char in "()" else " " if char.isspace() else "x"
        if kind not in _MOVES[place]:
            return FAILED, 0, NEVER, 0
        if kind != " " and place in (APART, CLOSED):  # nothing follows a tree that is whole
            needs = max(needs, 1 - depth)
        words += place in (CHILDLESS, APART) and kind == "x"
        place = _MOVES[place][kind]
        depth += {"(": 1, ")": -1}.get(kind, 0)
    return (place, depth, needs, words) if text else (FAILED, 0, NEVER, 0)


class Bracketed(NamedTuple):
    """A state, and where each row's text in brackets stands."""

    inner: Any
    place: Tensor  # (N,)
    depth: Tensor  # (N,)
    left: Tensor  # (N,) tokens that may still be said
    words: Tensor | None  # (N,) words that the tree still lacks


def tree(
    step: Step, brackets: Brackets, limits: Sequence[int], words: Sequence[int] | None = None
) -> Step:
    """Nothing but a well-formed tree can be said, and it is whole before its limit is reached.

    `limits` are the tokens that may be said about each source, `words` those of each tree, if it
    has a number of its own.
    """

    def ruled(tokens: Tokens, state: Any) -> tuple[LogProbs, Bracketed]:
        if isinstance(state, Bracketed):
            log_probs, inner = step(tokens, state.inner)
            here = brackets.after.to(tokens.device)[state.place, tokens]
            here = here.clamp(max=CLOSED)  # a row that has failed has no way on in any case
            depth = state.depth + brackets.change.to(tokens.device)[state.place, tokens]
            left, due = state.left - 1, state.words
            if due is not None:
                due = due - brackets.words.to(tokens.device)[state.place, tokens]
        else:
            log_probs, inner = step(tokens, state)
            here, depth = torch.full_like(tokens, START), torch.zeros_like(tokens)
            rows = len(tokens) // len(limits)
            left = torch.tensor(limits, device=tokens.device).repeat_interleave(rows)
            due = None
            if words is not None:
                due = torch.tensor(words, device=tokens.device).repeat_interleave(rows)
        fine = brackets.allowed(here, depth, left, due)
        return log_probs.masked_fill(~fine, -inf), Bracketed(inner, here, depth, left, due)

    return ruled


# --- several models -------------------------------------------------------------------------------


def ensemble(steps: Sequence[Step], weights: Sequence[float] | None = None) -> Step:
    """The mean of the steps' probabilities; the state is a tuple of theirs."""
    shares = [1.0] * len(steps) if weights is None else list(weights)
    if len(shares) != len(steps) or min(shares) <= 0:
        raise ConfigError("an ensemble needs a weight above 0 for each of its models")
    logs = [log(share / sum(shares)) for share in shares]

    def mean_step(tokens: Tokens, state: tuple[Any, ...]) -> tuple[LogProbs, tuple[Any, ...]]:
        answers = [step(tokens, part) for step, part in zip(steps, state, strict=True)]
        weighted = [log_p + share for (log_p, _), share in zip(answers, logs, strict=True)]
        return torch.logsumexp(torch.stack(weighted), 0), tuple(part for _, part in answers)

    return mean_step


def fuse(step: Step, other: Step, weight: float, first: int, other_first: int) -> Step:
    """Shallow fusion: a language model's log-probabilities added with a weight; state: a pair.

    Gulcehre et al. 2015, arxiv.org/abs/1503.03535. Where the one begins with `first`, the language
    model begins with `other_first`.
    """

    def fused(tokens: Tokens, state: tuple[Any, Any]) -> tuple[LogProbs, tuple[Any, Any]]:
        log_probs, mine = step(tokens, state[0])
        others, theirs = other(torch.where(tokens == first, other_first, tokens), state[1])
        return log_probs + weight * others, (mine, theirs)

    return fused


# --- attention to the source ----------------------------------------------------------------------


class Attended(NamedTuple):
    """A state, and how much each row has attended to each source position up to it."""

    inner: Any
    weights: Tensor  # (N, S) sums over the steps
    keep: Fixed | None  # (B, S) True where a source position is real; None: all are


def with_attention_sum(
    step: Step, attention: nn.Module, keep: Bool[Tensor, "B S"] | None = None
) -> Step:
    """The step that also sums the weights of an attention to the source; see `coverage`.

    `keep` is True where a position of a source is real, as of `Padded`.
    """

    def attending(tokens: Tokens, state: Any) -> tuple[LogProbs, Attended]:
        with watch(attention) as maps:
            log_probs, inner = step(tokens, state.inner if isinstance(state, Attended) else state)
        (calls,) = maps.values()
        weights = calls[-1]  # (N, 1, S), or (N, H, 1, S)
        weights = (weights.mean(1) if weights.dim() == 4 else weights)[:, 0]
        if isinstance(state, Attended):
            return log_probs, Attended(inner, state.weights + weights, state.keep)
        return log_probs, Attended(inner, weights, None if keep is None else Fixed(keep))

    return attending


def coverage(beta: float) -> Callable[[Any], Float[Tensor, "N"]]:
    """beta * sum_j log(min(1, attention to source position j)), a bonus for `beam_search`.

    Wu et al. 2016, arxiv.org/abs/1609.08144; the sum is over real positions, and none counts as
    attended to by less than a thousandth.
    """

    def bonus(state: Any) -> Float[Tensor, "N"]:
        while not isinstance(state, Attended):  # of a step with rules around it
            state = state.inner
        cost = state.weights.clamp(1e-3, 1.0).log()
        if state.keep is not None:
            cost = cost.masked_fill(~shared(state.keep.tree, len(cost)), 0.0)
        return beta * cost.sum(-1)

    return bonus
