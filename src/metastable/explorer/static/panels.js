// The runs on show: asks for them when a setting changes, takes in what arrives, forgets what was overtaken.
//
// One request of a panel is on its way at a time, and it is not overtaken before it is here: the moment that is looked at, with its
// clusters, which the next frame draws. The latest wish waits; wishes between are forgotten. Until then the old picture stays. Only what a
// hand has let go of may overtake a run that keeps everybody waiting, and never two runs in a row.

import { Run } from "./run.js";
import { store } from "./store.js";

const PATIENCE = 2000; // milliseconds that a wish waits for a run that has shown nothing
const ASK_AGAIN = 4000; // milliseconds after which an attention matrix of another run is asked for, or again after a failure
const LOST = 130_000; // milliseconds after which no answer will come: longer than the server lets anything take

export class Panels {
  constructor(events) {
    this.events = events;
    this.connection = null;
    this.runs = [null, null]; // what is on show
    this.flights = [null, null]; // what was asked for: { id, text, setting, clock, run, here, seen, ended, failed, overtook, since }
    this.wishes = [null, null]; // what will be asked for next: { final }
    this.ghosts = [null, null];
    this.problems = [null, null];
    this.before = [null, null];
    this.serial = 1;
    this.timers = [0, 0];
    this.attention = { asked: null, shown: "", failed: "", since: 0 }; // matrices, by run and frame: on its way, on show, refused
    this.attentionTimer = 0;
  }

  // Ask for the run of a panel as soon as its turn has come. `final`: the hand has let go.
  request(panel, final = true) {
    this.wishes[panel] = { final: final || Boolean(this.wishes[panel]?.final) };
    this.next(panel);
  }

  requestAll(final = true) { store.state.panels.forEach((_, panel) => this.request(panel, final)); }

  // After a new connection nothing is on its way any more.
  restart() { this.flights = [null, null]; this.attention.asked = null; this.requestAll(); }

  next(panel) {
    clearTimeout(this.timers[panel]);
    const wish = this.wishes[panel], flight = this.flights[panel];
    if (!wish) return;
    if (flight && !flight.failed && flight.text === this.text(panel)) {
      // It is on its way, or here, already.
      this.wishes[panel] = null;
      if (flight.seen) this.events.settled(panel, flight.run);
      return;
    }
    let overtook = false;
    if (flight && !flight.here && !flight.failed) {
      const wait = flight.since + PATIENCE - performance.now();
      if (flight.overtook || !wish.final || wait > 0) {
        if (wish.final && !flight.overtook) this.timers[panel] = setTimeout(() => this.next(panel), wait + 1);
        this.events.waiting(panel);
        return;
      }
      overtook = true;
    }
    this.ask(panel, overtook);
  }

  // What a request of this panel would say.
  text(panel) { return JSON.stringify([store.state.panels[panel], store.state.clock, this.before[panel]]); }

  ask(panel, overtook) {
    const { panels, clock } = store.state;
    if (!panels[panel]) { this.wishes[panel] = null; return; }
    const message = { type: "simulate", panel, run: ++this.serial, setting: panels[panel], clock };
    if (this.before[panel]) message.before = this.before[panel];
    if (!this.connection?.send(message)) return;
    this.wishes[panel] = null;
    this.flights[panel] = { id: message.run, text: this.text(panel), ...structuredClone({ setting: panels[panel], clock }), run: null, here: false, seen: false, ended: false, failed: false, overtook, since: performance.now() };
    this.events.waiting(panel);
  }

  drop(panel) {
    if (this.flights[panel]) this.connection?.send({ type: "cancel", panel, run: this.flights[panel].id });
    clearTimeout(this.timers[panel]);
    this.runs[panel] = this.flights[panel] = this.wishes[panel] = this.ghosts[panel] = this.problems[panel] = this.before[panel] = null;
  }

  // What is on show is not what was asked for.
  busy(panel) {
    const flight = this.flights[panel];
    return Boolean(this.wishes[panel] || (flight && !flight.seen && !flight.ended));
  }

  // The run that arrives or is on show, whichever is newer.
  newest(panel) { return this.flights[panel]?.run ?? this.runs[panel]; }

  // The picture of a panel has been drawn.
  painted(panel) {
    const flight = this.flights[panel], run = this.runs[panel];
    if (!run || run.seen || !this.events.ready(panel, run)) return;
    run.seen = true;
    if (flight?.run === run) flight.here = flight.seen = true;
    this.events.seen(panel);
    this.next(panel);
  }

  // What has arrived whole has the moment that is looked at. The next wish need not wait until it is drawn, unless the picture before this
  // one is still to be drawn: nobody is asked for more pictures than there are frames. (A run that is still computed would be cut off, and
  // cost the next one the time that it takes to stop.)
  arrive(panel) {
    const flight = this.flights[panel], run = this.runs[panel];
    if (!flight || flight.here || !flight.ended || flight.run !== run || flight.late || !this.events.ready(panel, run)) return;
    flight.here = true;
    this.next(panel);
  }

  // Show the run that arrives once it has the moment that is looked at. Without an old picture anything is better than nothing.
  consider(panel) {
    const run = this.flights[panel]?.run;
    if (!run || run === this.runs[panel] || !run.have) return;
    if (this.runs[panel] && !this.events.ready(panel, run)) return;
    const old = this.runs[panel];
    this.flights[panel].late = Boolean(old && !old.seen);
    this.runs[panel] = run;
    this.events.shown(panel, run, old);
  }

  // The handlers of the connection.
  handlers() {
    const arriving = ({ panel, run }) => (this.flights[panel]?.id === run ? this.flights[panel].run : null);
    const keep = (name) => (message) => { const run = arriving(message); if (run) { run[name] = message; this.events.arrived(message.panel, name, run); } };
    const taken = (add, name) => (message) => {
      const run = arriving(message);
      if (!run) return;
      run[add](message);
      this.consider(message.panel);
      this.events.arrived(message.panel, name, run);
    };
    return {
      begin: (message) => {
        const flight = this.flights[message.panel];
        if (flight?.id !== message.run) return;
        this.problems[message.panel] = null;
        flight.run = new Run(message, flight);
        this.events.arrived(message.panel, "begin", flight.run);
      },
      positions: taken("addPositions", "positions"), leaders: taken("addLeaders", "leaders"),
      facts: keep("facts"), view: keep("view"), curves: keep("curves"),
      end: (message) => {
        const run = arriving(message);
        if (!run) return;
        run.end = message;
        this.flights[message.panel].ended = true;
        this.consider(message.panel);
        this.events.arrived(message.panel, "end", run);
        this.arrive(message.panel);
      },
      attention: (message) => {
        this.attention.asked = null;
        if (this.runs[message.panel]?.id === message.run) { this.attention.shown = `${message.run}/${message.first}`; this.events.attention(message); }
        this.events.redraw();
      },
      stalled: ({ panel, run, about }) => { if (about === "attention") this.fail({ about }); else if (this.flights[panel]?.id === run) { this.flights[panel].failed = true; this.request(panel); } },
      error: (message) => this.fail(message),
    };
  }

  fail({ panel = 0, run, about, message, until }) {
    if (about === "attention") {
      if (this.runs[panel]?.view?.pieces) this.events.noAttention(); // what its model makes of others cannot be drawn here
      Object.assign(this.attention, { asked: null, failed: this.attention.asked }); this.lookAgain(() => { this.attention.failed = ""; });
      return;
    }
    const flight = this.flights[panel];
    if (run !== undefined && flight?.id !== run) return;
    if (flight) flight.ended = flight.failed = true;
    if (until !== undefined && (this.events.shorten(until) || this.wishes[panel])) { this.next(panel); return; }
    this.problems[panel] = message;
    this.events.arrived(panel, "error", null);
    this.next(panel);
  }

  // The attention matrix of a frame of the run on show: one request at a time, and the latest frame is asked for when it has come. Whoever
  // waits is not asked again, since that would only begin the same work anew; a picture that stands still is looked at again all the same.
  askAttention(panel, frame) {
    const run = this.runs[panel], model = run?.at(run.times[frame]).model, key = `${run?.id}/${frame}`, { asked, shown, failed, since } = this.attention;
    if (!run?.end || !model || frame >= run.end.frames || [asked, shown, failed].includes(key)) return;
    if (asked && performance.now() - since < (asked.startsWith(`${run.id}/`) ? LOST : ASK_AGAIN)) return;
    if (!this.connection?.send({ type: "attention", panel, run: run.id, frame, setting: { ...run.setting, model }, clock: run.clock })) return;
    Object.assign(this.attention, { asked: key, since: performance.now() });
    this.lookAgain();
  }

  lookAgain(first = () => {}) {
    clearTimeout(this.attentionTimer);
    this.attentionTimer = setTimeout(() => { first(); this.events.redraw(); if (this.attention.asked) this.lookAgain(); }, ASK_AGAIN + 10);
  }
}
