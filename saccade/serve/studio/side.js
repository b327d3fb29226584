// One side of the page: a run, its input, the answer, and a view of what happened. Two of them are a comparison.

import * as api from "./api.js";
import { announce, button, choice, count, debounce, el } from "./dom.js";
import { exportView } from "./export.js";
import { inputFields, windowsOf } from "./input.js";
import { answerNodes, completion, problem } from "./results.js";
import { isSampling, requested, searched, settingsForm } from "./settings.js";
import { closePopover } from "./tokens.js";
import { viewsOf } from "./views.js";

const TYPING = 220; // milliseconds of rest after which is asked
const WRITING = 550; // the same before a long text is begun
const COMPLETED = 80; // tokens of a completion, unless set

const TASKS = {
  translate: "translation",
  classify: "classification",
  tag: "tagging",
  language: "language model",
  pretrain: "pre-training",
  forecast: "forecast",
  regress: "regression",
  series: "series",
};

export class Side {
  constructor(app, state, index) {
    Object.assign(this, { app, state, index });
    this.answer = el("div", { class: "answer", "aria-live": "polite", "aria-busy": "false" });
    this.panel = el("div", {
      class: "panel",
      role: "tabpanel",
      tabindex: -1,
      id: `panel-${index}`,
    });
    this.node = el("section", {
      class: "side",
      "aria-label": index ? "second side" : "first side",
    });
    this.soon = debounce(() => this.ask(), TYPING);
    this.later = debounce(() => this.ask(), WRITING);
    this.lookers = new Map();
  }

  get run() {
    return this.app.runs.find((run) => run.name === this.state.run);
  }

  get input() {
    return this.state.input;
  }

  get prefix() {
    return this.state.prefix;
  }

  /** What is asked about: a language model goes on from its input and what is forced after it. */
  get given() {
    return this.run.task === "language" ? [(this.input[0] ?? "") + this.prefix] : this.input;
  }

  get options() {
    return this.state.options;
  }

  get filled() {
    return this.input.some((cell) => cell?.trim());
  }

  get streams() {
    return this.run.task === "language" && isSampling(this.run, this.state.settings);
  }

  // ---- building

  build() {
    const { run, state } = this;
    this.stop();
    if (!run) return this.unknown();
    const views = viewsOf(run);
    if (state.view !== "none" && !views.some((view) => view.kind === state.view)) state.view = "";
    this.picker = choice(
      this.app.runs.map((one) => [one.name, one.name]),
      run.name,
      (name) => this.choose(name),
      "run",
    );
    const head = el(
      "header",
      { class: "which" },
      this.picker,
      el(
        "span",
        { class: "facts" },
        [
          TASKS[run.task] ?? run.task,
          `${count(run.parameters)} parameters`,
          run.labels
            ? `${run.labels.length} labels`
            : run.searches || run.fills || run.vectors
              ? `vocabulary of ${count(run.vocabulary_size)}`
              : null,
          run.training ? "in training" : null,
        ]
          .filter(Boolean)
          .join(" · "),
      ),
      this.index
        ? button("Close", () => this.app.single(), {
            class: "quiet",
            "aria-label": "close this side",
          })
        : null,
    );
    this.fields = inputFields(run, state, () => this.changed());
    this.settings = run.searches
      ? settingsForm(run, state, (rebuild) => {
          if (rebuild) this.build();
          else this.ask();
          this.app.remember();
        })
      : null;
    this.tabs = this.tabList(views);
    const alone = run.task === "forecast" || run.vectors;
    this.node.replaceChildren(
      head,
      el(
        "div",
        { class: `desk${this.settings ? "" : " wide"}` },
        el("div", { class: "page" }, run.vectors ? null : this.fields, alone ? null : this.answer),
        this.settings ? el("aside", { class: "margin" }, this.settings) : null,
      ),
      el("div", { class: "views" }, this.tabs, this.panel),
    );
    this.answer.replaceChildren();
    this.asked = null;
    this.ask();
    this.show();
  }

  unknown() {
    const names = this.app.runs.map((run) => run.name);
    this.node.replaceChildren(
      problem(`There is no run “${this.state.run}” here.`),
      el(
        "p",
        { class: "hint" },
        "There are: ",
        ...names.flatMap((name, i) => [
          i ? ", " : "",
          button(name, () => this.choose(name), { class: "quiet" }),
        ]),
      ),
    );
  }

  choose(name) {
    const before = this.run;
    const { state } = this;
    state.run = name;
    const same = before && before.sources.join() === this.run.sources.join();
    Object.assign(state, {
      prefix: "",
      settings: Object.create(null),
      options: Object.create(null),
      nbest: 1,
      input: same ? state.input : [],
    });
    this.app.remember();
    this.build();
  }

  tabList(views) {
    const list = el("div", { class: "tabs", role: "tablist", "aria-label": "views" });
    const tabs = views.map((view) => {
      const tab = el(
        "button",
        {
          type: "button",
          role: "tab",
          "aria-controls": this.panel.id,
          "data-view": view.kind,
          title: view.about,
          on: {
            click: () => {
              this.state.view = tab.getAttribute("aria-selected") === "true" ? "none" : view.kind;
              this.app.remember();
              this.show();
            },
            keydown: (event) => {
              const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
              if (!step) return;
              event.preventDefault();
              const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
              next.focus();
              next.click();
            },
          },
        },
        view.title,
      );
      return tab;
    });
    list.append(...tabs);
    return list;
  }

  // ---- asking

  changed() {
    this.state.prefix = "";
    this.app.remember();
    this.app.mirror(this);
    (this.streams ? this.later : this.soon)();
  }

  /** The input was changed from elsewhere. */
  reload() {
    const { run } = this;
    if (!run) return;
    const fields = inputFields(run, this.state, () => this.changed());
    this.fields.replaceWith(fields);
    this.fields = fields;
    this.ask();
  }

  stop() {
    this.asking?.abort();
    this.asking = null;
  }

  async ask() {
    const { run, state } = this;
    closePopover();
    this.stop();
    this.prediction = null;
    if (!run || run.vectors) return;
    if (run.task === "forecast") return this.show();
    if (!this.filled) {
      this.answer.replaceChildren();
      this.answer.classList.remove("waiting");
      this.show();
      return;
    }
    if (run.fills && !this.input[0].includes("<mask>")) {
      this.answer.replaceChildren(
        el("p", { class: "hint" }, "Write ", el("code", {}, "<mask>"), " where a word is missing."),
      );
      this.show();
      return;
    }
    const asking = (this.asking = new AbortController());
    this.answer.classList.add("waiting");
    this.answer.setAttribute("aria-busy", "true");
    this.lookers.delete("answer");
    try {
      if (this.streams) await this.complete(asking.signal);
      else {
        const [prediction] = (
          await api.predict(
            {
              run: run.name,
              inputs: [this.asItem(this.given)],
              settings: requested(run, state.settings),
              nbest: state.nbest,
              prefixes: state.prefix && run.task !== "language" ? [state.prefix] : null,
              details: Boolean(run.searches),
            },
            asking.signal,
          )
        ).predictions;
        if (asking.signal.aborted) return;
        this.prediction = prediction;
        this.answer.replaceChildren(...answerNodes(this, prediction).filter(Boolean));
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      this.answer.replaceChildren(problem(error.message));
    } finally {
      if (this.asking === asking) {
        this.asking = null;
        this.answer.classList.remove("waiting");
        this.answer.setAttribute("aria-busy", "false");
      }
    }
    this.app.compare();
    this.show();
  }

  async complete(signal) {
    const { run, state } = this;
    const settings = { max_len: COMPLETED, ...requested(run, state.settings), kind: "sample" };
    const made = completion(this);
    const stream = api.events(
      "api/v1/stream",
      { run: run.name, input: this.given[0], settings },
      signal,
    );
    this.answer.replaceChildren(...made.nodes);
    this.answer.classList.remove("waiting");
    try {
      this.prediction = await made.run(stream);
      announce("The text is complete.");
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      made.redraw();
      this.answer
        .querySelectorAll("button.quiet")
        .forEach((one) => (one.disabled = one.textContent === "Stop"));
    }
  }

  asItem(input = this.input) {
    const { series } = this.run;
    if (series) return windowsOf(input[0] ?? "", series)[0] ?? "";
    const columns = this.fields.children.length;
    return columns > 1
      ? Array.from({ length: columns }, (_, i) => input[i] ?? "")
      : (input[0] ?? "");
  }

  /** What the server sees inside the run for this input. */
  inspect(kind, options, input = this.input, signal = undefined) {
    return api.inspect({ run: this.run.name, kind, input: this.asItem(input), options }, signal);
  }

  /** How the tokens of a run's "source" or "target" are cut. */
  kind(end) {
    return this.run.tokenizers?.[end] ?? "";
  }

  /** The answer that is shown, for views of it. */
  target() {
    let text = this.run.searches ? this.prediction?.text : "";
    const prompt = this.input[0] ?? "";
    if (text && this.run.task === "language" && !this.streams && text.startsWith(prompt))
      text = text.slice(prompt.length); // the search gives the prompt back
    return text ? { target: text } : {};
  }

  force(prefix) {
    this.state.prefix = prefix;
    this.app.remember();
    this.ask();
  }

  reseed() {
    this.state.settings.seed =
      (Number(this.state.settings.seed ?? this.run.decode?.seed ?? 1) || 1) + 1;
    const box = [...(this.settings?.querySelectorAll("label.field") ?? [])].find(
      (one) => one.textContent === "Seed",
    );
    if (box) box.querySelector("input").value = this.state.settings.seed;
    this.app.remember();
    this.ask();
  }

  // ---- looking: a token that is pointed at anywhere is marked everywhere

  look(kind, index) {
    for (const react of this.lookers.values()) react(kind, index);
  }

  onLook(react, who = "answer") {
    this.lookers.set(who, react);
  }

  // ---- views

  /** Draw the chosen view, if there is one. */
  async show() {
    const { state, run } = this;
    const views = run ? viewsOf(run) : [];
    const view = state.view ? views.find((one) => one.kind === state.view) : views[0]; // "none" is a choice, too
    this.tabs?.querySelectorAll("[role=tab]").forEach((tab) => {
      const on = tab.dataset.view === view?.kind;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on || (!view && tab === this.tabs.firstChild) ? 0 : -1;
    });
    this.showing?.abort();
    this.drawn = null;
    this.lookers.delete("view");
    if (!view) return this.panel.replaceChildren();
    const showing = (this.showing = new AbortController());
    if (view.needsInput && !this.filled)
      return this.panel.replaceChildren(el("p", { class: "hint" }, view.about));
    if (view.needsInput && this.asking) return; // drawn when the answer is there
    this.panel.classList.add("waiting");
    const body = el("div", { class: `view view-${view.kind}` });
    const context = {
      side: this,
      run,
      body,
      signal: showing.signal,
      options: state.options,
      data: null,
      width: () => this.panel.clientWidth,
      inspect: (options, input) => this.inspect(view.kind, options, input, showing.signal),
      settings: () => searched(run, state.settings),
      remember: (changes) => {
        Object.assign(state.options, changes);
        this.app.remember();
      },
      again: () => this.show(),
    };
    try {
      context.data = await view.load(context);
      if (showing.signal.aborted) return;
      this.panel.replaceChildren(
        el(
          "div",
          { class: "about" },
          el("p", { class: "hint" }, view.about),
          this.tools(view, context),
        ),
        body,
      );
      view.draw(context, context.data);
      this.drawn = { view, context };
    } catch (error) {
      if (error.name === "AbortError" || showing.signal.aborted) return;
      if (!(error instanceof api.ApiError)) console.error(error);
      this.panel.replaceChildren(problem(error.message));
    }
    this.panel.classList.remove("waiting");
  }

  /** The same view again: the window, or the theme, has changed. */
  redraw() {
    if (!this.drawn) return;
    const { view, context } = this.drawn;
    context.body.replaceChildren();
    view.draw(context, context.data);
  }

  tools(view, context) {
    const name = `${this.run.name}-${view.kind}`;
    const write = (format) =>
      button(format.toUpperCase(), () => exportView(context.body, context.data, name, format), {
        class: "quiet",
        "aria-label": `save as ${format.toUpperCase()}`,
      });
    return el(
      "div",
      { class: "tools", "data-no-export": true },
      button("Copy link", (event) => this.app.copyLink(event.target), { class: "quiet" }),
      write("svg"),
      write("png"),
      write("json"),
    );
  }
}
