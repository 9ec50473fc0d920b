/**
 * Token data that is derived from the token, so that a test can verify it at any position. Numbers have many digits, so
 * that a rounded value differs from the original.
 */
import type { TokenData, TokenTable } from '../../src/protocol/token-data/token-data.ts'

export const LAYERS = 2
export const EXPERTS_PER_TOKEN = 3

function hash(token: number, salt: number): number {
  let bits = (Math.imul(token + 1, 2_654_435_761) ^ Math.imul(salt + 7, 1_597_334_677)) >>> 0
  bits = Math.imul(bits ^ (bits >>> 15), 2_246_822_519) >>> 0
  return (bits ^ (bits >>> 13)) >>> 0
}

export function getLogprob(token: number, salt: number): number {
  return -(hash(token, salt) / 0x1_0000_0000) * 9.871
}

/** Returns the token first, then up to three others. */
export function getMask(token: number): number[] {
  const others = hash(token, 1) % 4
  return [token, ...Array.from({ length: others }, (_, index) => token + 1 + index)]
}

export function getMaskLogprobs(token: number): number[] {
  return getMask(token).map((_, index) => getLogprob(token, 10 + index))
}

/** Returns `count` alternatives; whether the token is among them is random. */
export function getTop(token: number, count: number): [id: number, logprob: number][] {
  const first = token + (hash(token, 2) % 2)
  return Array.from({ length: count }, (_, index) => [first + index, getLogprob(token, 20 + index)])
}

/** Returns the entries of a prompt's position: its own token, then the likeliest. */
export function getPrompt(token: number, others: number): [id: number, logprob: number][] {
  const own: [number, number] = [token, -9.5 + getLogprob(token, 30) / 100]
  return [
    own,
    ...Array.from({ length: others }, (_, index): [number, number] => [token + 1 + index, -0.1 - index / 7]),
  ]
}

/** Returns the experts of all layers, concatenated. */
export function getExperts(token: number): number[] {
  return Array.from({ length: LAYERS * EXPERTS_PER_TOKEN }, (_, index) => hash(token, 50 + index) % 200)
}

export function getVersion(token: number): string {
  return `step-${hash(token, 60) % 2}`
}

export function getVersionSpans(tokens: readonly number[]) {
  const spans: { version: string; start: number; end: number }[] = []
  for (const [index, token] of tokens.entries()) {
    const last = spans.at(-1)
    if (last?.version === getVersion(token)) last.end = index + 1
    else spans.push({ version: getVersion(token), start: index, end: index + 1 })
  }
  return spans
}

function toTable(rows: readonly (readonly [number, number])[][]): TokenTable {
  return {
    counts: rows.map((row) => row.length),
    ids: rows.flatMap((row) => row.map(([id]) => id)),
    logprobs: rows.flatMap((row) => row.map(([, logprob]) => logprob)),
  }
}

/**
 * Returns all token data that an engine can report of a completion.
 * @param expertsStart the first position whose experts it reports
 */
export function getDetails(
  prompt: readonly number[],
  completion: readonly number[],
  { alternatives = 2, expertsStart = 0 } = {},
): TokenData {
  const masks = completion.map((token) =>
    getMask(token).map((id, index): [number, number] => [id, getMaskLogprobs(token)[index]!]),
  )
  const read = [...prompt, ...completion].slice(expertsStart, -1)
  return {
    sampling_mask: toTable(masks),
    sampling_logprobs: completion.map((token) => getLogprob(token, 5)),
    top_logprobs: toTable(completion.map((token) => getTop(token, alternatives))),
    prompt_logprobs: {
      ...toTable(prompt.map((token, index) => (index === 0 ? [] : getPrompt(token, 1)))),
      start: 0,
    },
    routed_experts: {
      start: expertsStart,
      experts: {
        dtype: 'U8',
        shape: [read.length, LAYERS, EXPERTS_PER_TOKEN],
        data: Uint8Array.from(read.flatMap(getExperts)),
      },
    },
    weight_versions: getVersionSpans(completion),
  }
}

/** The token data of a row or trace in JSON. */
export interface TokenDataJson {
  sampling_mask?: (number[] | null)[] | null
  sampling_mask_logprobs?: (number[] | null)[] | null
  sampling_logprobs?: (number | null)[] | null
  top_logprob_ids?: (number[] | null)[] | null
  top_logprobs?: (number[] | null)[] | null
  prompt_logprob_ids?: (number[] | null)[] | null
  prompt_logprobs?: (number[] | null)[] | null
  routed_experts?: { dtype: string; shape: number[]; known: [number, number][]; data: string } | null
  weight_versions?: { version: string; start: number; end: number }[] | null
}

interface RowJson extends TokenDataJson {
  prompt: readonly number[]
  response: readonly number[]
  mask: readonly number[]
}

/** Checks the data of a row's tokens, if its turns reported everything in `shown`. @returns the first violation */
export function findFault(shown: RowJson, alternatives: number): string | undefined {
  const { prompt, response, mask } = shown
  const sample = <T>(of: (token: number) => T) =>
    response.map((token, index) => (mask[index] === 1 ? of(token) : null))
  const expected: Partial<Record<keyof TokenDataJson, unknown>> = {
    sampling_mask: sample(getMask),
    sampling_mask_logprobs: sample(getMaskLogprobs),
    sampling_logprobs: sample((token) => getLogprob(token, 5)),
    top_logprob_ids: sample((token) => getTop(token, alternatives).map(([id]) => id)),
    top_logprobs: sample((token) => getTop(token, alternatives).map(([, logprob]) => logprob)),
  }
  for (const [kind, value] of Object.entries(expected)) {
    const data = shown[kind as keyof TokenDataJson]
    if (data != null && JSON.stringify(data) !== JSON.stringify(value)) return kind
  }
  return findPromptFault(shown, [...prompt, ...response]) ?? findExpertsFault(shown, [...prompt, ...response])
}

function findPromptFault(shown: RowJson, sequence: readonly number[]): string | undefined {
  if (shown.prompt_logprobs == null) return undefined
  for (const [index, token] of sequence.entries()) {
    const isRead = index > 0 && index < shown.prompt.length
    const alternatives = shown.prompt_logprobs[index]
    if (
      isRead
        ? alternatives == null
        : index >= shown.prompt.length &&
          shown.mask[index - shown.prompt.length] &&
          alternatives === undefined
    )
      return `prompt_logprobs at ${index}`
    if (alternatives == null) continue
    const expected = getPrompt(token, 1)
    if (JSON.stringify(shown.prompt_logprob_ids?.[index]) !== JSON.stringify(expected.map(([id]) => id)))
      return `ids at ${index}`
    if (JSON.stringify(alternatives) !== JSON.stringify(expected.map(([, logprob]) => logprob)))
      return `logprobs at ${index}`
  }
  return undefined
}

function findExpertsFault(
  { routed_experts: experts }: RowJson,
  sequence: readonly number[],
): string | undefined {
  if (experts == null) return undefined
  const width = LAYERS * EXPERTS_PER_TOKEN
  if (experts.known.join() !== `0,${sequence.length - 1}`) return `known ${JSON.stringify(experts.known)}`
  const data = Buffer.from(experts.data, 'base64')
  if (experts.dtype !== 'uint8' || data.length !== sequence.length * width) return 'the shape of experts'
  for (const [index, token] of sequence.slice(0, -1).entries()) {
    if (data.subarray(index * width, (index + 1) * width).join() !== getExperts(token).join())
      return `experts at ${index}`
  }
  return undefined
}
