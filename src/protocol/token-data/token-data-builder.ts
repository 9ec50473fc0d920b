/** Assembles the token data of a completion from that of its deltas. */
import { isTokenId } from '../token-ids/token-ids.ts'
import { packTokenData, type TokenData, type TokenDataBlob, type TokenTable } from './token-data.ts'

/** A table that grows by rows. */
class TableBuilder {
  readonly counts: number[] = []
  readonly ids: number[] = []
  logprobs: number[] | undefined

  /** Adds empty rows, which mean that nothing was reported, until the table has `rows` rows. */
  pad(rows: number): void {
    while (this.counts.length < rows) this.counts.push(0)
  }

  add({ counts, ids, logprobs }: TokenTable): void {
    // One delta may have logprobs and another one not: unreported ones are NaN.
    if (logprobs) this.logprobs ??= this.ids.map(() => Number.NaN)
    for (const count of counts) this.counts.push(count)
    for (const id of ids) this.ids.push(id)
    if (this.logprobs === undefined) return
    for (let index = 0; index < ids.length; index += 1) this.logprobs.push(logprobs?.[index] ?? Number.NaN)
  }

  buildTable(): TokenTable {
    const { counts, ids, logprobs } = this
    return { counts, ids, ...(logprobs && { logprobs }) }
  }
}

/** The kinds that have a row per sampled token. */
const PER_TOKEN = ['sampling_mask', 'top_logprobs'] as const

/**
 * A builder of a completion's token data. Data per token arrives with the tokens and stays aligned with them if some
 * deltas have none. Data of the complete response replaces earlier data, because streaming engines repeat it, longer
 * each time.
 */
export class TokenDataBuilder {
  readonly #tables = new Map<(typeof PER_TOKEN)[number], TableBuilder>()
  #samplingLogprobs: number[] | undefined
  readonly #latest: Pick<TokenData, 'prompt_logprobs' | 'routed_experts' | 'weight_versions'> = {}

  /**
   * Adds the token data of a delta.
   * @param before number of tokens of the completion before this delta
   * @param tokens number of tokens of this delta; tables with another number of rows do not belong to them and are
   *   dropped
   */
  add(details: TokenData, before: number, tokens: number): void {
    for (const kind of PER_TOKEN) {
      const table = details[kind]
      if (table === undefined || table.counts.length !== tokens || !table.ids.every(isTokenId)) continue
      const builder = this.#getTable(kind)
      builder.pad(before)
      builder.add(table)
    }
    if (details.sampling_logprobs?.length === tokens)
      this.#addSamplingLogprobs(details.sampling_logprobs, before)
    const { prompt_logprobs: prompt, routed_experts: experts, weight_versions: versions } = details
    if (prompt?.ids.every(isTokenId)) this.#latest.prompt_logprobs = prompt
    if (experts !== undefined) this.#latest.routed_experts = experts
    if (versions !== undefined) this.#latest.weight_versions = versions
  }

  /**
   * The weight version that sampled the first token, if the engine reported versions per token, which it does at the end
   * of a stream. The spans of a continued response may begin later.
   */
  get firstVersion(): string | undefined {
    const [first] = this.#latest.weight_versions ?? []
    return first?.start === 0 ? first.version : undefined
  }

  get hasExperts(): boolean {
    return this.#latest.routed_experts !== undefined
  }

  /** Returns the collected token data. @param tokens number of tokens of the complete completion */
  buildTokenData(tokens: number): TokenData {
    const details: TokenData = { ...this.#latest }
    for (const [kind, builder] of this.#tables) {
      builder.pad(tokens)
      details[kind] = builder.buildTable()
    }
    if (this.#samplingLogprobs) {
      padWithNaN(this.#samplingLogprobs, tokens)
      details.sampling_logprobs = this.#samplingLogprobs
    }
    return details
  }

  pack(tokens: number): TokenDataBlob[] {
    return packTokenData(this.buildTokenData(tokens))
  }

  #getTable(kind: (typeof PER_TOKEN)[number]): TableBuilder {
    const builder = this.#tables.get(kind) ?? new TableBuilder()
    this.#tables.set(kind, builder)
    return builder
  }

  #addSamplingLogprobs(logprobs: readonly number[], before: number): void {
    this.#samplingLogprobs ??= []
    padWithNaN(this.#samplingLogprobs, before)
    for (const logprob of logprobs) this.#samplingLogprobs.push(logprob)
  }
}

function padWithNaN(values: number[], length: number): void {
  while (values.length < length) values.push(Number.NaN)
}
