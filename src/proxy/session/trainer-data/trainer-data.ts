/** Trainer data: values that a trainer adds to sampled tokens after their turn ended. */
import { ProxyError } from '../../../base/errors.ts'
import { TRAINER_DATA_KINDS, type TrainerDataKind } from '../../../protocol/token-data/kinds.ts'
import { packTokenData, type TokenData } from '../../../protocol/token-data/token-data.ts'
import type { TurnDetails, TurnReader } from '../../store/port/turn-store.ts'

/**
 * The values of one turn by kind: one per sampled token, null for none. A list may be shorter than the completion; it
 * then covers the first tokens.
 */
export type TrainerNumbers = Partial<Record<TrainerDataKind, readonly (number | null)[]>>

/** The trainer data of one request. */
export interface TrainerData {
  /** The values of each turn, by turn index or turn id. */
  readonly turns: Readonly<Record<string, TrainerNumbers>>
  /** The name of the teacher that computed `teacher_logprobs`. */
  readonly teacher?: string
}

/**
 * Converts trainer data to token data of the session's turns.
 * @throws ProxyError `turn_not_found`; `invalid_request` for a turn that is named twice, for more values than the turn
 *   has tokens, or for logprobs without a teacher
 */
export async function toTokenData(
  store: Pick<TurnReader, 'readOutlines'>,
  sessionId: string,
  { turns, teacher }: TrainerData,
): Promise<TurnDetails[]> {
  const left = new Map(Object.entries(turns))
  const details: TurnDetails[] = []
  for await (const { turnId, index, sampledTokens } of store.readOutlines(sessionId)) {
    const names = new Set([String(index), turnId])
    const named = [...names].filter((name) => left.has(name))
    if (named.length > 1)
      throw createRejection(`'turns' has turn ${index} twice: by its index and by its id`, 'turns')
    const [name] = named
    if (name === undefined) continue
    const numbers = left.get(name)!
    left.delete(name)
    details.push({ turnId, details: packTokenData(validate(numbers, { index, sampledTokens, teacher })) })
  }
  const [missing] = left.keys()
  if (missing === undefined) return details
  throw new ProxyError('turn_not_found', `The session has no turn '${missing}'`, { param: 'turns' })
}

function validate(
  numbers: TrainerNumbers,
  turn: { index: number; sampledTokens: number; teacher: string | undefined },
): TokenData {
  const { index, sampledTokens, teacher } = turn
  const details: { -readonly [Kind in keyof TokenData]: TokenData[Kind] } = {}
  for (const kind of TRAINER_DATA_KINDS) {
    const values = numbers[kind]?.map((value) => value ?? Number.NaN)
    if (values === undefined) continue
    if (values.length > sampledTokens) {
      const message = `'${kind}' of turn ${index} has ${values.length} numbers for ${sampledTokens} tokens`
      throw createRejection(message, `turns.${index}.${kind}`)
    }
    if (kind !== 'teacher_logprobs') details[kind] = values
    else if (teacher !== undefined) details[kind] = { teacher, logprobs: values }
    else
      throw createRejection(
        "'teacher_logprobs' requires 'teacher', the name of the model that computed them",
        'teacher',
      )
  }
  return details
}

function createRejection(message: string, param: string): ProxyError {
  return new ProxyError('invalid_request', message, { param })
}
