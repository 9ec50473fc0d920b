/** Prometheus metric families. Series are stored as numbers: an observation costs one look-up and one addition. */

type MetricType = 'counter' | 'gauge' | 'histogram'

/** A reference from a bucket to one observed event; only the OpenMetrics format contains it. */
export interface Exemplar {
  labels: Readonly<Record<string, string>>
  value: number
  /** Milliseconds since the epoch. */
  atMs: number
}

/** One sample line of an exposition. */
export interface MetricSample {
  /** Suffix of the family's name: `_bucket`, `_sum`, `_count` or empty. */
  suffix: string
  labels: readonly (readonly [name: string, value: string])[]
  value: number
  exemplar?: Exemplar | undefined
}

/** All series with the same metric name. */
export interface MetricFamily {
  /** The name in the Prometheus text format; the name of a counter ends in `_total`. */
  readonly name: string
  readonly type: MetricType
  /** One sentence without a full stop. */
  readonly help: string
  readonly labelNames: readonly string[]
  listSamples(): Iterable<MetricSample>
}

/** The definition of a metric family. */
interface MetricDescription {
  name: string
  help: string
  labelNames?: readonly string[]
}

/** The state of one combination of label values. */
interface Series<T> {
  readonly labels: MetricSample['labels']
  state: T
}

/** Series keyed by label values, created on first use. */
class SeriesMap<T> {
  readonly #names: readonly string[]
  readonly #create: () => T
  readonly #series = new Map<string, Series<T>>()

  constructor(names: readonly string[], create: () => T) {
    this.#names = names
    this.#create = create
    // The only series of a family without labels exists from the start, because a rate needs its initial zero.
    if (names.length === 0) this.getSeries([])
  }

  getSeries(values: readonly string[]): Series<T> {
    const key = values.length === 1 ? values[0]! : values.join('\0')
    const existing = this.#series.get(key)
    if (existing) return existing
    const labels = this.#names.map((name, i) => [name, values[i] ?? ''] as const)
    const series = { labels, state: this.#create() }
    this.#series.set(key, series)
    return series
  }

  all(): Iterable<Series<T>> {
    return this.#series.values()
  }

  clear(): void {
    this.#series.clear()
  }
}

/** A metric family with a state of type `T` per series. */
abstract class SeriesFamily<T> implements MetricFamily {
  abstract readonly type: MetricType
  readonly name: string
  readonly help: string
  readonly labelNames: readonly string[]
  protected readonly series: SeriesMap<T>

  constructor({ name, help, labelNames = [] }: MetricDescription, create: () => T) {
    this.name = name
    this.help = help
    this.labelNames = labelNames
    this.series = new SeriesMap(labelNames, create)
  }

  abstract listSamples(): Iterable<MetricSample>
}

/** A metric family with one number per series. */
abstract class NumberFamily extends SeriesFamily<number> {
  constructor(described: MetricDescription) {
    super(described, () => 0)
  }

  *listSamples(): Iterable<MetricSample> {
    for (const { labels, state } of this.series.all()) yield { suffix: '', labels, value: state }
  }
}

/** A metric whose numbers only increase. */
export class Counter extends NumberFamily {
  readonly type = 'counter'

  /** Increases a series. @param labels label values in the order of `labelNames` */
  add(amount: number, ...labels: string[]): void {
    this.series.getSeries(labels).state += amount
  }
}

/** A metric whose numbers are set at each scrape. */
export class Gauge extends NumberFamily {
  readonly type = 'gauge'

  set(value: number, ...labels: string[]): void {
    this.series.getSeries(labels).state = value
  }

  /** Removes every series. */
  clear(): void {
    this.series.clear()
  }
}

/** The state of a series of a histogram. */
interface Distribution {
  /** The count of each bucket alone (not cumulative); the bucket without an upper bound is last. */
  readonly counts: number[]
  readonly exemplars: (Exemplar | undefined)[]
  sum: number
}

/** A metric that counts values in buckets. */
export class Histogram extends SeriesFamily<Distribution> {
  readonly type = 'histogram'
  readonly #bounds: readonly number[]

  /** @param buckets upper bounds, ascending */
  constructor({ buckets, ...described }: MetricDescription & { buckets: readonly number[] }) {
    super(described, () => ({
      counts: new Array(buckets.length + 1).fill(0),
      exemplars: new Array(buckets.length + 1).fill(undefined),
      sum: 0,
    }))
    this.#bounds = buckets
  }

  observe(value: number, ...labels: string[]): void {
    this.#add(value, labels)
  }

  /** Counts a value, and makes its turn the exemplar of the bucket. */
  observeTurn(value: number, turnId: string): void {
    const { exemplars, bucket } = this.#add(value, [])
    exemplars[bucket] = { labels: { turn_id: turnId }, value, atMs: Date.now() }
  }

  *listSamples(): Iterable<MetricSample> {
    for (const { labels, state } of this.series.all()) {
      let count = 0
      for (const [bucket, own] of state.counts.entries()) {
        count += own
        const le = ['le', formatBound(this.#bounds[bucket])] as const
        const exemplar = state.exemplars[bucket]
        yield { suffix: '_bucket', labels: [...labels, le], value: count, exemplar }
      }
      yield { suffix: '_sum', labels, value: state.sum }
      yield { suffix: '_count', labels, value: count }
    }
  }

  #add(value: number, labels: string[]) {
    const { state } = this.series.getSeries(labels)
    let bucket = 0
    while (bucket < this.#bounds.length && value > this.#bounds[bucket]!) bucket += 1
    state.counts[bucket]! += 1
    state.sum += value
    return { exemplars: state.exemplars, bucket }
  }
}

/** Formats a bound as the Prometheus client libraries do, so that `le` is equal in series of other exporters. */
function formatBound(bound: number | undefined): string {
  if (bound === undefined) return '+Inf'
  return Number.isInteger(bound) ? bound.toFixed(1) : String(bound)
}
