// The transport of a page without a server: runs that were recorded when the page was made are played back, all others are computed by a
// Web Worker. `site` is what the page carries:
//   greeting     the first message
//   worker       the script of the worker, as text
//   recordings   [{ name, panel, setting, clock }]: what was recorded
//   player       true where one recorded run is all there is
//   offline      a script that keeps the page for times without a network, or null
// Recordings come as scripts, `recorded/<name>.js`, which leave the texts of the panels in METASTABLE_RECORDED (or the page has them inside).

import { canonical, decode, play, stateOf } from "./recorded.js";

const WITHIN_REACH = 2000; // horizons that the worker computes as well, and says what a change by hand has changed

export class StaticTransport {
  constructor(site, receive) {
    this.site = site;
    this.receive = receive;
    this.waiting = new Map();
    this.number = 0;
    this.latest = [null, null]; // the wish of each panel
    this.played = new Map(); // run -> recording
    this.decoded = new Map();
    this.loading = new Map();
    this.recordings = new Map(site.recordings.map((entry) => [canonical([entry.setting, entry.clock]), entry]));
    globalThis.METASTABLE_RECORDED ??= {};
    if (site.offline && globalThis.isSecureContext && location.protocol.startsWith("http")) navigator.serviceWorker?.register(site.offline).catch(() => {});
    this.worker = this.start(site.worker);
    queueMicrotask(() => receive(site.greeting));
  }

  // A script from a Blob: pages under file: may not load a worker from a file.
  start(source) {
    const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    worker.onmessage = ({ data }) => {
      if (data.type !== "reply") { this.receive(data); return; }
      const { resolve, reject } = this.waiting.get(data.number);
      this.waiting.delete(data.number);
      if (data.error) reject(new Error(data.error));
      else resolve({ name: data.name, blob: new Blob([data.body], { type: data.media }) });
    };
    return worker;
  }

  send(message) {
    const { type, panel, run } = message;
    if (type === "simulate") {
      const recording = this.recordings.get(canonical([message.setting, message.clock]));
      this.latest[panel] = run;
      if (recording && !(message.before && message.clock.until <= WITHIN_REACH)) { this.replay(recording, message); return true; }
    }
    if (type === "cancel") this.latest[panel] = null;
    if (this.site.player && type === "simulate") { this.receive({ type: "error", panel, run, about: type, message: "this page plays one recorded run; others are computed by the metastable package" }); return true; }
    if (type === "attention" && this.played.has(run)) {
      const recording = this.played.get(run);
      if (recording.components === message.setting.model.dim) message = { ...message, state: stateOf(recording, message.frame) };
      else if (this.site.player) return true; // the tokens themselves are not here
    }
    this.worker.postMessage(message);
    return true;
  }

  async replay(entry, message) {
    const { panel, run } = message;
    this.worker.postMessage({ type: "cancel", panel, run });
    let recording;
    try {
      recording = await this.recording(entry);
    } catch {
      if (this.latest[panel] === run) this.worker.postMessage(message); // it cannot be read here: compute it
      return;
    }
    if (this.latest[panel] !== run) return;
    this.played.set(run, recording);
    while (this.played.size > 4) this.played.delete(this.played.keys().next().value);
    play(recording, { panel, run }, this.receive);
  }

  recording({ name, panel }) {
    const key = `${name}/${panel}`;
    if (!this.decoded.has(key)) {
      const made = this.texts(name).then((texts) => decode(texts[panel]));
      this.decoded.set(key, made);
      made.catch(() => this.decoded.delete(key));
    }
    return this.decoded.get(key);
  }

  // A script, because pages under file: may not fetch.
  async texts(name) {
    const recorded = globalThis.METASTABLE_RECORDED;
    if (recorded[name]) return recorded[name];
    if (!this.loading.has(name)) this.loading.set(name, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `recorded/${name}.js`;
      script.onload = resolve;
      script.onerror = () => { this.loading.delete(name); script.remove(); reject(new Error(`recorded/${name}.js cannot be loaded`)); };
      document.head.append(script);
    }));
    await this.loading.get(name);
    return recorded[name];
  }

  request(name, body) {
    return new Promise((resolve, reject) => {
      this.waiting.set(++this.number, { resolve, reject });
      this.worker.postMessage({ type: "request", number: this.number, name, body });
    });
  }
}
