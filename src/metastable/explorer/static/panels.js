// The runs on show: asks the server for them when a setting changes, takes in what arrives, forgets what was overtaken.

import { Run } from "./run.js";
import { store } from "./store.js";

const QUIET = 70; // milliseconds between requests while something is being dragged

export class Panels {
  constructor(events) {
    this.events = events;
    this.connection = null;
    this.runs = [null, null];
    this.arriving = [null, null];
    this.ghosts = [null, null];
    this.problems = [null, null];
    this.before = [null, null];
    this.serial = 1;
    this.asked = [0, 0];
    this.sent = [null, null];
    this.timers = [0, 0];
    this.sentAt = [0, 0];
    this.attention = { busy: false, key: "" };
  }

  // Ask for the run of a panel, at once or as soon as the last request is a moment ago.
  request(panel) {
    clearTimeout(this.timers[panel]);
    const wait = Math.max(0, this.sentAt[panel] + QUIET - performance.now());
    this.timers[panel] = setTimeout(() => this.ask(panel), wait);
  }

  requestAll() { store.state.panels.forEach((_, panel) => this.request(panel)); }

  ask(panel) {
    const { panels, clock } = store.state;
    if (!panels[panel]) return;
    const message = { type: "simulate", panel, run: ++this.serial, setting: panels[panel], clock };
    if (this.before[panel]) message.before = this.before[panel];
    if (!this.connection?.send(message)) return;
    this.asked[panel] = message.run;
    this.sent[panel] = structuredClone({ setting: panels[panel], clock });
    this.sentAt[panel] = performance.now();
    this.events.asked(panel);
  }

  drop(panel) {
    this.connection?.send({ type: "cancel", panel, run: this.asked[panel] });
    this.runs[panel] = this.arriving[panel] = this.ghosts[panel] = this.problems[panel] = this.before[panel] = null;
    this.asked[panel] = 0;
  }

  current(message) { return message.run === this.asked[message.panel]; }

  // The handlers of the connection.
  handlers() {
    const arriving = (message) => (this.current(message) ? this.arriving[message.panel] : null);
    const keep = (name) => (message) => { const run = arriving(message); if (run) { run[name] = message; this.events.arrived(message.panel, name); } };
    return {
      begin: (message) => {
        if (!this.current(message)) return;
        this.problems[message.panel] = null;
        this.arriving[message.panel] = new Run(message);
        this.events.arrived(message.panel, "begin");
      },
      positions: (message) => {
        const run = arriving(message);
        if (!run) return;
        run.addPositions(message);
        if (this.runs[message.panel] !== run) this.runs[message.panel] = run;
        this.events.arrived(message.panel, "positions");
      },
      leaders: (message) => { arriving(message)?.addLeaders(message); },
      facts: keep("facts"), view: keep("view"), curves: keep("curves"),
      end: (message) => {
        const run = arriving(message);
        if (!run) return;
        run.end = message;
        this.events.arrived(message.panel, "end");
      },
      attention: (message) => { this.attention.busy = false; if (this.current(message)) this.events.attention(message); },
      error: (message) => {
        this.attention.busy = false;
        if (message.about === "attention") return;
        if (message.panel !== undefined && !this.current(message)) return;
        this.problems[message.panel ?? 0] = message.message;
        this.events.arrived(message.panel ?? 0, "error");
      },
    };
  }

  // The attention matrix of a frame, one request at a time.
  askAttention(panel, frame) {
    const run = this.runs[panel], key = `${run?.id}/${frame}`;
    if (!run?.end || this.attention.key === key || (this.attention.busy && performance.now() - this.attention.since < 4000)) return;
    if (frame >= run.end.frames || !this.current({ panel, run: run.id })) return;
    if (this.connection?.send({ type: "attention", panel, run: run.id, frame, ...this.sent[panel] })) this.attention = { busy: true, key, since: performance.now() };
  }
}
