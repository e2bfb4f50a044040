// The clock: where in time the picture is, and how fast it goes on. A film is paced by motion: where little moves it hurries, and it begins
// where something does. The clock waits while a new run is computed.

import { fractionOf } from "./chart.js";
import { change, saveSoon, store } from "./store.js";

const DURATION = 14; // seconds from start to end at speed 1, where all moments move alike
const CALM = 0.22, LIVELY = 2.4; // shortest and longest share of its time that a moment is shown

export class Clock {
  // `page`: { panels, redraw, moved, paused, drift }.
  constructor(page) {
    Object.assign(this, page);
    this.time = 0; // the moment itself, whatever clock a run was made with
    this.fresh = false; // a film that has just been loaded and begins by itself
  }

  get runs() { return store.state.panels.map((_, panel) => this.panels.runs[panel]).filter(Boolean); }
  get furthest() { return Math.min(1, ...this.runs.map((run) => run.last / run.frame)); }
  get finished() { return this.runs.every((run) => run.end); }
  get waiting() { return store.state.panels.some((_, panel) => this.panels.busy(panel) && this.panels.runs[panel]?.end); }

  matches(run) { return run.clock.until === store.state.clock.until && Boolean(run.clock.log) === Boolean(store.state.clock.log); }

  // Where a run is looked at: a run of an earlier clock stays at the same time.
  placeOf(run) {
    const place = run.place(this.matches(run) ? store.state.view.at : fractionOf(run.times, this.time, run.clock.log));
    if (this.matches(run) && this.time !== Infinity) this.time = place.time;
    return place;
  }

  // A run can be shown when it has the moment that is looked at.
  ready(run) {
    const at = run.isShown ? store.state.view.at : this.target(run);
    return run.has(Math.min(run.frames - 1, Math.ceil(at * run.frame - 1e-6)));
  }
  // Where a new run is looked at: at the same time as those before it (at the end, if that is where one was).
  target(run, before = this.runs) {
    if (this.time === Infinity) return 1;
    const other = before.some((old) => old.frames !== run.frames || !this.matches(old));
    return other ? fractionOf(run.times, this.time, run.clock.log) : store.state.view.at;
  }

  // A step to the next picture: of a run that is held its next moment.
  get stride() { return Math.max(1 / 360, ...this.runs.map((run) => (run.held ? 1 / run.frame : 0))); }

  // A run takes the place of another.
  shown(run, old) {
    const at = this.matches(run) && old ? this.target(run, [old]) : store.state.view.at;
    run.isShown = true;
    if (at !== store.state.view.at) this.setAt(at);
  }

  // Something about the runs changes: who is at the end stays there.
  hold() { this.time = store.state.view.at === 1 ? Infinity : this.time === Infinity ? 0 : this.time; }

  setAt(at) {
    store.state.view.at = Math.min(1, Math.max(0, at));
    const [run] = this.runs;
    this.time = run ? run.place(store.state.view.at).time : 0;
    this.moved(store.state.view.at);
    saveSoon(); this.redraw();
  }
  seek(at) { this.fresh = false; this.pause(); this.setAt(at); }
  pause() {
    if (!store.state.view.playing) return;
    change("view", (state) => { state.view.playing = false; });
    this.paused();
  }
  toggle() {
    if (store.state.view.playing) { this.pause(); return; }
    change("view", (state) => { state.view.playing = true; });
    if (store.state.view.at >= this.furthest - 1e-6 && this.finished) this.setAt(this.beginning);
  }

  // The last moment before anything moves.
  get beginning() { return Math.min(1, ...this.runs.map((run) => run.motion.still / run.frame)); }

  // More frames of a film that begins by itself: go to where something moves.
  arrived() {
    if (!this.fresh || !store.state.view.playing || !this.runs.length) return;
    const still = Math.min(...this.runs.map((run) => run.firstMotion() / run.frame));
    if (still > store.state.view.at) this.setAt(still);
    if (this.runs.every((run) => run.end || run.firstMotion() < run.last)) this.fresh = false;
  }

  advance(seconds) {
    const { view } = store.state, { runs } = this;
    if (this.waiting) return;
    const motion = Math.max(...runs.map((run) => run.motion[Math.min(run.last, Math.floor(view.at * run.frame))] || 0));
    const share = Math.min(LIVELY, Math.max(CALM, motion));
    const end = this.furthest, next = view.at + (seconds * view.speed) / (DURATION * share);
    if (next < end) view.at = next;
    else {
      view.at = Math.min(Math.max(view.at, end), 1);
      if (this.finished) this.pause();
    }
    this.time = runs[0].place(view.at).time;
    this.drift(seconds);
    this.redraw();
  }
}
