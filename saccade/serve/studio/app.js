// The page: which runs there are, one side or two, the link, and the theme.

import * as api from "./api.js";
import { announce, button, debounce, el, spelled } from "./dom.js";
import { forgetColours } from "./matrix.js";
import { problem } from "./results.js";
import { Side } from "./side.js";
import { emptySide, fromFragment, toFragment } from "./state.js";
import { textOf } from "./tokens.js";

const byId = (id) => document.getElementById(id);

class App {
  constructor() {
    this.runs = [];
    this.main = byId("main");
    this.remember = debounce(() => this.write(), 150);
    byId("compare").addEventListener("click", () =>
      this.state.sides.length > 1 ? this.single() : this.double(),
    );
    byId("copy").addEventListener("click", (event) => this.copyLink(event.target));
    byId("linked").addEventListener("change", (event) => {
      this.state.linked = event.target.checked;
      if (this.state.linked) this.mirror(this.sides[0]);
      this.write();
    });
    addEventListener("hashchange", () => location.hash.slice(1) !== this.written && this.restore());
    let width = innerWidth;
    addEventListener(
      "resize",
      debounce(() => {
        if (innerWidth === width) return; // a phone's keyboard changes the height alone
        width = innerWidth;
        this.sides.forEach((side) => side.redraw());
      }, 150),
    );
    this.sides = [];
    this.state = { sides: [], linked: true };
  }

  async start() {
    try {
      this.runs = await api.runs();
    } catch (error) {
      this.main.replaceChildren(
        problem(error.message),
        button("Try again", () => this.start()),
      );
      return;
    }
    if (!this.runs.length)
      return this.main.replaceChildren(
        problem("The server has no run: start it with `saccade serve RUN`."),
      );
    this.restore();
    this.watchTraining();
  }

  /** What the link says. */
  restore() {
    this.written = location.hash.slice(1);
    this.state = fromFragment(location.hash);
    if (!this.state.sides.length)
      this.state = { sides: [emptySide(this.runs[0].name)], linked: true };
    this.build();
  }

  build() {
    const two = this.state.sides.length > 1;
    this.sides.forEach((side) => side.stop());
    this.sides = this.state.sides.map((state, i) => new Side(this, state, i));
    document.body.classList.toggle("two", two);
    byId("compare").textContent = two ? "One side" : "Compare";
    byId("link").hidden = !two;
    byId("linked").checked = this.state.linked;
    this.main.replaceChildren(...this.sides.map((side) => side.node));
    this.sides.forEach((side) => side.build());
  }

  double() {
    const [first] = this.state.sides;
    const other =
      this.runs.find(
        (run) =>
          run.name !== first.run &&
          run.task === this.runs.find((one) => one.name === first.run)?.task,
      ) ?? this.runs.find((run) => run.name === first.run);
    this.state.sides.push({
      ...emptySide(other.name),
      input: [...first.input],
      view:
        other.views.includes(first.view) || ["curves", "worst"].includes(first.view)
          ? first.view
          : "",
    });
    this.state.linked = true;
    this.write();
    this.build();
    announce("Two sides. Choose a run for each, or give each an input of its own.");
  }

  single() {
    this.state.sides.length = 1;
    this.write();
    this.build();
  }

  /** With the same input on both sides, what is written on one appears on the other. */
  mirror(from) {
    if (!this.state.linked || this.sides.length < 2) return;
    for (const side of this.sides) {
      if (side === from || side.run?.sources.join() !== from.run?.sources.join()) continue;
      side.state.input = [...from.input];
      side.state.prefix = "";
      side.reload();
    }
  }

  /** Mark the tokens of two answers that are not in the other. */
  compare() {
    const [a, b] = this.sides;
    if (!b?.prediction?.tokens || !a?.prediction?.tokens) return;
    const words = (side) =>
      side.prediction.tokens.map((_, i) => textOf(side.prediction.tokens, i).trim());
    const [x, y] = [words(a), words(b)];
    if (x.length * y.length > 250_000) return;
    const common = longestCommon(x, y);
    for (const [side, kept] of [
      [a, common.map(([i]) => i)],
      [b, common.map(([, j]) => j)],
    ]) {
      const same = new Set(kept);
      side.answer
        .querySelectorAll(".token")
        .forEach((token, i) => token.classList.toggle("differs", !same.has(i)));
    }
  }

  write() {
    const fragment = toFragment(this.state);
    if (fragment === null) return false;
    this.written = fragment;
    history.replaceState(null, "", `#${fragment}`);
    return true;
  }

  async copyLink(from) {
    const whole = this.write();
    let said = whole ? "Copied" : "The input is too long for a link";
    try {
      await navigator.clipboard.writeText(location.href);
    } catch {
      said = "The link is in the address bar";
    }
    const before = from.textContent;
    from.textContent = said;
    announce(said);
    setTimeout(() => (from.textContent = before), 1600);
  }

  /** A run that was in training may have ended. */
  async watchTraining() {
    if (!this.runs.some((run) => run.training)) return;
    setTimeout(async () => {
      try {
        const now = new Map((await api.runs()).map((run) => [run.name, run]));
        for (const run of this.runs)
          if (now.has(run.name)) run.training = now.get(run.name).training;
      } catch {
        // asked again below
      }
      this.watchTraining();
    }, 15_000);
  }
}

function longestCommon(x, y) {
  const table = Array.from({ length: x.length + 1 }, () => new Uint16Array(y.length + 1));
  for (let i = x.length - 1; i >= 0; i--)
    for (let j = y.length - 1; j >= 0; j--)
      table[i][j] =
        x[i] === y[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const found = [];
  for (let i = 0, j = 0; i < x.length && j < y.length; ) {
    if (x[i] === y[j]) found.push([i++, j++]);
    else if (table[i + 1][j] >= table[i][j + 1]) i++;
    else j++;
  }
  return found;
}

// ---- light and dark

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = byId("theme");
  button.textContent = { auto: "Light or dark", light: "Light", dark: "Dark" }[theme];
  button.setAttribute(
    "aria-label",
    `colours: ${theme === "auto" ? "as the system has them" : theme}`,
  );
  button.dataset.now = theme;
  forgetColours();
  app?.sides.forEach((side) => side.redraw());
}

const stored = () => {
  try {
    return THEMES.find((theme) => theme === localStorage.getItem("theme")) ?? "auto";
  } catch {
    return "auto"; // a browser that stores nothing
  }
};

function askForKey(again) {
  return new Promise((done) => {
    const box = el("input", { type: "password", autocomplete: "off", "aria-label": "key" });
    const dialog = el(
      "dialog",
      {
        class: "key",
        on: {
          close: () => {
            dialog.remove();
            done(box.value.trim() || null);
          },
        },
      },
      el(
        "form",
        { method: "dialog" },
        el(
          "p",
          {},
          again ? "That key is not right. The server's key:" : "This server asks for its key:",
        ),
        box,
        el("button", { type: "submit" }, "Go on"),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

let app = null;
setTheme(stored());
byId("theme").addEventListener("click", (event) => {
  const next = THEMES[(THEMES.indexOf(event.target.dataset.now) + 1) % THEMES.length];
  try {
    localStorage.setItem("theme", next);
  } catch {
    // it holds until the page is closed
  }
  setTheme(next);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(stored()));
api.onKeyNeeded(askForKey);
app = new App();
app.start();
addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError") return event.preventDefault();
  app.main.prepend(problem(spelled(event.reason?.message ?? "Something went wrong in the page.")));
  return undefined;
});
