/** What `/metrics` answers, as numbers. */

/** The values of some series of Prometheus' text format, added up. */
export class MetricSamples {
  readonly #lines: readonly string[]

  /** @param text https://prometheus.io/docs/instrumenting/exposition_formats/ */
  constructor(text: string) {
    this.#lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  }

  /** @param label `name="value"` that each series has to have; a front puts a `node` beside it */
  values(name: string, label = ''): number[] {
    return this.#lines
      .filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `))
      .filter((line) => line.includes(label))
      .map((line) => Number(line.slice(line.lastIndexOf(' ') + 1)))
  }

  /** 0 where there is none. */
  sum(name: string, label?: string): number {
    return this.values(name, label).reduce((sum, value) => sum + value, 0)
  }
}
