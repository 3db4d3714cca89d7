// The form that submits a file job.

import { announce, byId, el, say } from "./dom.js";
import { bytesOf } from "./format.js";
import { hashOf, options } from "./jobs.js";
import { ask } from "./service.js";

const FLAGS = ["exclusive", "reverse", "check", "force"];
const TEXTS = ["dtype", "initial", "segments"];
const FIELDS = ["inputs", "output", "op", "axis", "memory", ...TEXTS, ...FLAGS];

export class JobForm {
  #dialog = byId("new");
  #form = byId("new-form");
  #wrong = byId("new-wrong");
  #fields = this.#form.elements;
  #key = ""; // names the request: one that is sent twice is one job
  #named = false; // whether the user has named the output
  #others = {}; // options without a field, of the job that is submitted again

  constructor() {
    byId("new-open").addEventListener("click", () => this.open());
    byId("new-close").addEventListener("click", () => this.#dialog.close());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#form.addEventListener("input", ({ target }) => {
      this.#key = "";
      if (target.name === "output") this.#named = target.value !== "";
      if (target.name === "inputs" && !this.#named) this.#fields.output.value = outputOf(lines(target.value)[0] ?? "");
    });
  }

  /** Show the form: as it was left, or with the request of a `job`. */
  async open(job) {
    this.#say("");
    this.#dialog.showModal();
    await this.#addOperators();
    if (job) await this.#fill(job);
    else this.#others = {};
    say(byId("new-others"), options(this.#others) && `Further options, of the job: ${options(this.#others)}`);
    this.#fields.inputs.focus();
  }

  /** Add the operators, which the description of the protocol names. */
  async #addOperators() {
    const { op } = this.#fields;
    if (op.options.length > 1) return;
    try {
      const { components } = await (await ask("v1/openapi.json")).json();
      const others = components.schemas.Op.enum.filter((name) => name !== op.value);
      op.append(...others.map((name) => el("option", {}, name)));
    } catch (error) {
      this.#say(`The operators are not known: ${error.message}`);
    }
  }

  async #fill({ number, request, input_count: inputs }) {
    let first = request;
    try {
      if (inputs > 1) first = (await (await ask(`v1/jobs/${number}`)).json()).request; // all inputs
    } catch (error) {
      this.#say(`Only the first input is known: ${error.message}`);
    }
    this.#key = "";
    this.#named = true;
    this.#fields.inputs.value = first.inputs.join("\n");
    for (const name of ["output", "op", "axis", "memory", ...TEXTS]) this.#fields[name].value = request[name] ?? "";
    for (const name of FLAGS) this.#fields[name].checked = request[name] === true;
    this.#others = Object.fromEntries(Object.entries(first).filter(([name]) => !FIELDS.includes(name)));
  }

  async #submit() {
    const submit = byId("new-submit");
    this.#say("");
    submit.disabled = true;
    try {
      this.#key ||= [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(16)).join("-");
      const answer = await ask("v1/jobs", { method: "POST", body: JSON.stringify(this.#request()),
        headers: { "content-type": "application/json", "idempotency-key": this.#key } });
      const { number } = await answer.json();
      this.#key = "";
      this.#dialog.close();
      announce(`Job ${number} is submitted`);
      location.hash = hashOf(number);
    } catch (error) {
      this.#say(error.message);
    }
    submit.disabled = false;
  }

  /** Return the request: options that the user has left empty are not in it. */
  #request() {
    const fields = this.#fields;
    const request = { ...this.#others, inputs: lines(fields.inputs.value), output: fields.output.value.trim(), op: fields.op.value };
    for (const name of TEXTS) if (fields[name].value.trim()) request[name] = fields[name].value.trim();
    for (const name of FLAGS) if (fields[name].checked) request[name] = true;
    if (fields.axis.value !== "") request.axis = Number(fields.axis.value);
    if (fields.memory.value.trim()) {
      request.memory = bytesOf(fields.memory.value);
      if (!(request.memory >= 1)) throw new Error(`The memory is a number of bytes such as 2 GB, not ${fields.memory.value}`);
    }
    return request;
  }

  #say(text) {
    say(this.#wrong, text);
    if (text) this.#wrong.scrollIntoView({ block: "nearest" });
  }
}

/** Return the lines of a text that are not empty. */
const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** Return the output of an input, by its name, as the command line chooses it. */
function outputOf(input) {
  const path = input.replace(/::[^/]*$/, ""); // FILE::NAME
  const [, stem, suffix] = /^(.*?)(\.[^./]*)?$/.exec(path);
  if (!stem || stem.endsWith("/")) return "";
  const same = /^\.(h5|hdf5|nc|zarr|parquet|arrow|feather)$/.test(suffix ?? "");
  return same ? `${stem}.scan${suffix}` : `${/^\.np[yz]$/.test(suffix ?? "") ? stem : path}.scan.npy`;
}
