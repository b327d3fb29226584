"""Steps, and functions `Step -> Step` that constrain or change a search; they compose.

A wrapper with a state of its own puts it beside the inner state at the first call, so a search
starts with the plain state whatever is wrapped around the step.
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
Rule = Callable[[Tensor, Tensor], Tensor]  # ((N, V) log_probs, (N, t) history) -> (N, V)


def stepper(decoder: Decoder, banned: Sequence[int] = ()) -> Step:
    """The step of a decoder: one column in, the next token's log-probabilities out.

    Banned tokens get -inf; the others keep their log-probabilities.
    """
    columns = list(banned)

    def step(tokens: Tokens, state: Any) -> tuple[LogProbs, Any]:
        logits, state = decoder(tokens[:, None], state)
        logits = logits[:, 0].float()
        out = None if logits.requires_grad else logits  # in place: it is large
        log_probs = torch.log_softmax(logits, -1, out=out)
        if columns:
            log_probs[:, columns] = -inf
        return log_probs, state

    return step


def map_log_probs(step: Step, change: Callable[[Tensor], Tensor]) -> Step:
    """The same step with its log-probabilities changed, each row by itself."""

    def transformed(tokens: Tokens, state: Any) -> tuple[LogProbs, Any]:
        log_probs, state = step(tokens, state)
        return change(log_probs), state

    return transformed


def ban(step: Step, banned: Sequence[int]) -> Step:
    """The same step with -inf for these tokens; the others keep their log-probabilities."""
    columns = torch.tensor(banned, dtype=torch.long, device="cpu")
    return map_log_probs(step, lambda log_p: log_p.index_fill(1, columns.to(log_p.device), -inf))


# --- filters for sampling -------------------------------------------------------------------------


def tempered(step: Step, temperature: float) -> Step:
    """Probabilities to the power 1 / temperature: below 1 sharper, above 1 flatter."""
    return map_log_probs(step, lambda log_probs: (log_probs / temperature).log_softmax(-1))


def top_k(step: Step, k: int) -> Step:
    """Only the k likeliest tokens     Fan et al. 2018, arxiv.org/abs/1805.04833"""

    def change(log_probs: LogProbs) -> LogProbs:
        least = log_probs.topk(min(k, log_probs.size(-1)), -1).values[:, -1:]
        return _keep(log_probs, log_probs >= least)

    return map_log_probs(step, change)


def top_p(step: Step, p: float) -> Step:
    """Only the likeliest that together have probability p     Holtzman et al. 2020"""
    return map_log_probs(step, lambda log_probs: _smallest_set(log_probs, -log_probs, p))


def typical(step: Step, p: float) -> Step:
    """Only those nearest to the expected surprise, together p     Meister et al. 2023"""

    def change(log_probs: LogProbs) -> LogProbs:
        entropy = -torch.xlogy(log_probs.exp(), log_probs.exp()).sum(-1, keepdim=True)
        return _smallest_set(log_probs, (log_probs + entropy).abs(), p)

    return map_log_probs(step, change)


def min_p(step: Step, share: float) -> Step:
    """Only those with at least this share of the likeliest's probability     Nguyen et al. 2024"""
    bound = log(share)
    return map_log_probs(step, lambda log_p: _keep(log_p, log_p >= log_p.amax(-1, True) + bound))


def _smallest_set(log_probs: LogProbs, cost: LogProbs, p: float) -> LogProbs:
    """The tokens of lowest cost, up to the one with which their probability reaches p."""
    order = cost.argsort(dim=-1, stable=True)
    cdf = log_probs.gather(-1, order).exp().cumsum(-1)
    before = cdf - log_probs.gather(-1, order).exp()
    kept = torch.zeros_like(log_probs, dtype=torch.bool).scatter(-1, order, before < p)
    return _keep(log_probs, kept)


def _keep(log_probs: LogProbs, kept: Bool[Tensor, "N V"]) -> LogProbs:
    return log_probs.masked_fill(~kept, -inf).log_softmax(-1)


# --- constraints that depend on the history -------------------------------------------------------


class WithHistory(NamedTuple):
    """A state, and the output of each row up to it."""

    inner: Any
    history: Tensor  # (N, t) tokens


def with_history(step: Step, rule: Rule) -> Step:
    """The step under a rule that depends on the output of each row so far."""

    def constrained(tokens: Tokens, state: Any) -> tuple[LogProbs, WithHistory]:
        if isinstance(state, WithHistory):
            history = torch.cat([state.history, tokens[:, None]], 1)
            log_probs, inner = step(tokens, state.inner)
        else:
            history = tokens.new_zeros(len(tokens), 0)  # the start symbol is not output
            log_probs, inner = step(tokens, state)
        return rule(log_probs, history), WithHistory(inner, history)

    return constrained


def at_least(step: Step, end: int, length: int) -> Step:
    """No output ends before it has this many tokens."""

    def rule(log_probs: LogProbs, history: Int[Tensor, "N t"]) -> LogProbs:
        if history.size(1) >= length:
            return log_probs
        return log_probs.index_fill(1, torch.tensor([end], device=log_probs.device), -inf)

    return with_history(step, rule)


def no_repeat(step: Step, n: int) -> Step:
    """No n-gram of tokens is repeated."""

    def rule(log_probs: LogProbs, history: Int[Tensor, "N t"]) -> LogProbs:
        if history.size(1) < n:
            return log_probs
        grams = history.unfold(1, n, 1)  # (N, t - n + 1, n)
        repeated = (grams[:, :, :-1] == history[:, None, history.size(1) - n + 1 :]).all(-1)
        hit = torch.zeros_like(log_probs).scatter_add_(1, grams[:, :, -1], repeated.to(log_probs))
        return log_probs.masked_fill(hit > 0, -inf)

    return with_history(step, rule)


def avoid(step: Step, phrases: Sequence[Sequence[int]]) -> Step:
    """No output contains one of these phrases."""

    def rule(log_probs: LogProbs, history: Int[Tensor, "N t"]) -> LogProbs:
        log_probs = log_probs.clone()
        for *beginning, last in phrases:
            n = len(beginning)
            if n > history.size(1):
                continue
            start = torch.tensor(beginning, dtype=torch.long, device=history.device)
            log_probs[(history[:, history.size(1) - n :] == start).all(-1), last] = -inf
        return log_probs

    return with_history(step, rule)


def repetition(step: Step, penalty: float) -> Step:
    """Log-probabilities of tokens in the history, times the penalty     Keskar et al. 2019"""

    def rule(log_probs: LogProbs, history: Int[Tensor, "N t"]) -> LogProbs:
        repeated = torch.zeros_like(log_probs, dtype=torch.bool).scatter_(1, history, True)
        return torch.where(repeated, log_probs * penalty, log_probs)

    return with_history(step, rule)


def only(step: Step, end: int, texts: Sequence[Sequence[int]]) -> Step:
    """The output is one of these texts: at each step only what their trie allows."""
    trie: dict[int, Any] = {}
    for text in texts:
        _insert(trie, (*text, end))

    def rule(log_probs: LogProbs, history: Int[Tensor, "N t"]) -> LogProbs:
        allowed = torch.full_like(log_probs, -inf)
        for n, row in enumerate(history.tolist()):
            node: Any = trie
            for token in row:
                if isinstance(node, dict):
                    node = node.get(token, ())
                else:
                    node = node[1:] if node[:1] == (token,) else ()
            following = list(node if isinstance(node, dict) else node[:1])
            index = torch.tensor(following, dtype=torch.long, device=log_probs.device)
            allowed[n, index] = log_probs[n, index]
        return allowed

    return with_history(step, rule)


def _insert(trie: dict[int, Any], text: tuple[int, ...]) -> None:
    """Add a text to a trie, in which a branch without forks is one tuple."""
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
    at: Tensor  # (N,) the number of tokens so far


def prompted(step: Step, prefixes: Sequence[Sequence[int]]) -> Step:
    """Each source's text begins with its prefix, whose tokens keep their log-probabilities."""
    longest = max((len(prefix) for prefix in prefixes), default=0)
    filled = [[*prefix, *[-1] * (longest - len(prefix))] for prefix in prefixes]
    table = torch.tensor(filled, dtype=torch.long, device="cpu")

    def prompted_step(tokens: Tokens, state: Any) -> tuple[LogProbs, Any]:
        if not isinstance(state, Prompted):
            rows = table.to(tokens.device).repeat_interleave(len(tokens) // len(prefixes), 0)
            state = Prompted(state, Fixed(rows), torch.zeros_like(tokens))
        log_probs, inner = step(tokens, state.inner)
        t = int(state.at[0])  # the same in all rows
        if t < longest:
            wanted = shared(state.prefix.tree[:, t], len(tokens))
            forced = torch.full_like(log_probs, -inf)
            column = wanted.clamp(min=0)[:, None]
            forced.scatter_(1, column, log_probs.gather(1, column))
            log_probs = torch.where(wanted[:, None] >= 0, forced, log_probs)
        return log_probs, Prompted(inner, state.prefix, state.at + 1)

    return prompted_step if longest else step


class Stoppable(NamedTuple):
    inner: Any
    source: Tensor  # (N,) the number of each row's source


def stoppable(step: Step, end: int, stopped: Sequence[Callable[[], bool]]) -> Step:
    """The search for a source may be cancelled: from then on its rows can only end."""

    def stoppable_step(tokens: Tokens, state: Any) -> tuple[LogProbs, Any]:
        if not isinstance(state, Stoppable):
            numbers = torch.arange(len(stopped), device=tokens.device)
            each = len(tokens) // len(stopped)
            state = Stoppable(state, numbers.repeat_interleave(each))
        stopped_now = [is_stopped() for is_stopped in stopped]
        log_probs, inner = step(tokens, state.inner)
        if any(stopped_now):
            rows = torch.tensor(stopped_now, device=tokens.device)[state.source]
            log_probs = log_probs.masked_fill(rows[:, None], -inf)
            log_probs[rows, end] = 0.0
        return log_probs, Stoppable(inner, state.source)

    return stoppable_step


def recording(step: Step, record: list[Tensor]) -> Step:
    """The same step, which stores its last log-probabilities in `record`."""

    def transformed(tokens: Tokens, state: Any) -> tuple[LogProbs, Any]:
        log_probs, state = step(tokens, state)
        record[:] = [log_probs]
        return log_probs, state

    return transformed


# --- trees ----------------------------------------------------------------------------------------

# States of a parser of bracketed trees: "(" label child ... ")", where a child is a tree or a word.
START, OPENED, LABEL, CHILDLESS, WORD, APART, CLOSED = range(7)
FAILED = 7
_TRANSITIONS: dict[int, dict[str, int]] = {  # on a bracket, a blank, or x: any other character
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
    """The effect of each token on the parser of bracketed trees: tables of (places, V).

    A place is a state of the parser, from START to CLOSED.
    """

    def __init__(self, texts: Sequence[str], end: int, silent: Sequence[int]):
        """`texts` are the tokens as they are written, with their blanks; `end` closes a text."""
        effects = [[_read(place, text) for text in texts] for place in range(FAILED)]
        self.end = end
        self.after, self.change, self.needs, self.words = (
            torch.tensor([[one[k] for one in row] for row in effects], device="cpu")
            for k in range(4)
        )
        self.after[:, [end, *silent]] = FAILED
        self.cost = self._costs()
        opens = (self.change[START] > 0) & (self.after[START] != FAILED)
        ways = 1 + self.cost[self.after[START]] + (self.change[START] - 1) * self.cost[CLOSED]
        self.least = int(ways[opens].min()) if bool(opens.any()) else NEVER  # tokens of a tree

    @cached_property
    def word_cost(self) -> int:
        """The most tokens that one more word takes where the grammar allows it."""
        ready, stays = (APART, CLOSED, WORD), (self.after != FAILED) & (self.change == 0)
        begins = stays & (self.words == 1) & (self.after <= APART)
        if all(bool(begins[place].any()) for place in ready):
            return 1
        parts = stays & (self.after == APART) & (self.words == 0)  # a blank first
        both = all(bool((begins | parts)[place].any()) for place in ready) and begins[APART].any()
        return 2 if both else NEVER

    def _costs(self) -> Int[Tensor, "places"]:
        """The least number of tokens that close the innermost bracket, from each place."""
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
        """Whether every bracket can be closed by tokens that close a single one."""
        return bool((self.cost[OPENED:FAILED] < NEVER).all())

    def allowed(
        self,
        place: Int[Tensor, "N"],
        depth: Int[Tensor, "N"],
        left: Int[Tensor, "N"],
        words_left: Int[Tensor, "N"] | None = None,
    ) -> Bool[Tensor, "N V"]:
        """Which tokens lead to a tree that can be complete within `left` tokens.

        With `words_left` it has exactly so many more words.
        """
        after, before = self.after.to(place.device)[place], depth[:, None]
        depth_after = before + self.change.to(place.device)[place]
        cost = self.cost.to(place.device)
        needed = torch.where(depth_after > 0, cost[after] + (depth_after - 1) * cost[CLOSED], 0)
        needed = torch.where(after == START, self.least, needed)
        allowed = (after != FAILED) & (before >= self.needs.to(place.device)[place])
        if words_left is not None:
            missing = words_left[:, None] - self.words.to(place.device)[place]
            wordless = (after >= OPENED) & (after <= CHILDLESS)  # a bracket that needs a word
            allowed &= (missing > 0) | ((missing == 0) & ~wordless)
            allowed &= (depth_after > 0) | (missing == 0) | (after == START)
            included = wordless | (after == START)  # their cost includes one word
            more = (missing.clamp(min=0) - included.long()) * self.word_cost
            more -= ((after == APART) & (missing > 0)).long() * (self.word_cost - 1)  # its blank
            needed = (needed + more).clamp(max=NEVER)
        allowed &= needed < left[:, None]
        allowed[:, self.end] = (depth == 0) & ((place == CLOSED) | (place == APART))
        return allowed


def _read(place: int, text: str) -> tuple[int, int, int, int]:
    """The place after a token, the change of depth, the depth required, and the words begun.

    FAILED where the token is not allowed at any depth.
    """
    depth = needs = words = 0
    for char in text:
        kind = char if char in "()" else " " if char.isspace() else "x"
        if kind not in _TRANSITIONS[place]:
            return FAILED, 0, NEVER, 0
        if kind != " " and place in (APART, CLOSED):  # nothing follows a complete tree
            needs = max(needs, 1 - depth)
        words += place in (CHILDLESS, APART) and kind == "x"
        place = _TRANSITIONS[place][kind]
        depth += {"(": 1, ")": -1}.get(kind, 0)
    return (place, depth, needs, words) if text else (FAILED, 0, NEVER, 0)


class Bracketed(NamedTuple):
    """A state, and that of the parser of each row."""

    inner: Any
    place: Tensor  # (N,)
    depth: Tensor  # (N,)
    left: Tensor  # (N,) tokens up to the limit
    words: Tensor | None  # (N,) words that the tree still needs


def tree(
    step: Step, brackets: Brackets, limits: Sequence[int], words: Sequence[int] | None = None
) -> Step:
    """The output is a well-formed tree, which is complete within its limit.

    `limits` are the most tokens of each source's output, `words` the number of words of each tree,
    if it is fixed.
    """

    def constrained(tokens: Tokens, state: Any) -> tuple[LogProbs, Bracketed]:
        if isinstance(state, Bracketed):
            log_probs, inner = step(tokens, state.inner)
            place = brackets.after.to(tokens.device)[state.place, tokens]
            place = place.clamp(max=CLOSED)  # a row that has failed has no continuation anyway
            depth = state.depth + brackets.change.to(tokens.device)[state.place, tokens]
            left, words_left = state.left - 1, state.words
            if words_left is not None:
                words_left = words_left - brackets.words.to(tokens.device)[state.place, tokens]
        else:
            log_probs, inner = step(tokens, state)
            place, depth = torch.full_like(tokens, START), torch.zeros_like(tokens)
            rows = len(tokens) // len(limits)
            left = torch.tensor(limits, device=tokens.device).repeat_interleave(rows)
            words_left = None
            if words is not None:
                words_left = torch.tensor(words, device=tokens.device).repeat_interleave(rows)
        allowed = brackets.allowed(place, depth, left, words_left)
        state = Bracketed(inner, place, depth, left, words_left)
        return log_probs.masked_fill(~allowed, -inf), state

    return constrained


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

    Gulcehre et al. 2015, arxiv.org/abs/1503.03535. `first` and `other_first` are the start symbols
    of the model and of the language model.
    """

    def fused(tokens: Tokens, state: tuple[Any, Any]) -> tuple[LogProbs, tuple[Any, Any]]:
        log_probs, state_a = step(tokens, state[0])
        log_q, state_b = other(torch.where(tokens == first, other_first, tokens), state[1])
        return log_probs + weight * log_q, (state_a, state_b)

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
        while not isinstance(state, Attended):  # under the states of wrapped steps
            state = state.inner
        cost = state.weights.clamp(1e-3, 1.0).log()
        if state.keep is not None:
            cost = cost.masked_fill(~shared(state.keep.tree, len(cost)), 0.0)
        return beta * cost.sum(-1)

    return bonus
