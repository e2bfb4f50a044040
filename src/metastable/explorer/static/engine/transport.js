// The transport of an exported page: runs that were recorded when the page was made are played back, all others are computed by a
// Web Worker. `site` is what the page carries: { greeting, worker (the script as text) or null, recordings: [{ key, file }] }.

export class StaticTransport {
  constructor(site, receive) {
    this.site = site;
    this.receive = receive;
    this.waiting = new Map();
    this.number = 0;
    this.worker = site.worker ? this.start(site.worker) : null;
    queueMicrotask(() => receive(site.greeting));
  }

  // A script from a Blob: pages under file: may not load a worker from a file.
  start(source) {
    const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    worker.onmessage = (event) => this.arrived(event.data);
    return worker;
  }

  arrived(data) {
    if (data.type !== "reply") { this.receive(data); return; }
    const { resolve, reject } = this.waiting.get(data.number);
    this.waiting.delete(data.number);
    if (data.error) reject(new Error(data.error));
    else resolve({ name: data.name, blob: new Blob([data.body], { type: data.media }) });
  }

  send(message) {
    if (!this.worker) return false;
    this.worker.postMessage(message);
    return true;
  }

  request(name, body) {
    return new Promise((resolve, reject) => {
      if (!this.worker) { reject(new Error("this page shows one recorded run; files are made by the metastable package")); return; }
      this.waiting.set(++this.number, { resolve, reject });
      this.worker.postMessage({ type: "request", number: this.number, name, body });
    });
  }
}
