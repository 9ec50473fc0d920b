/** Resolves item references of a request's input: `{"type": "item_reference", "id": "msg_{turnId}_0"}`. */
import { createInvalidError, ProxyError } from '../../../base/errors.ts'
import type { TurnOutline } from '../../store/port/turn-store.ts'
import { buildOutputItems, isResponse, type OutputTurn, type TurnFinder } from './history.ts'
import type { OutputItem } from './output-item.ts'
import type { InputItem, ResponsesRequest } from './schema.ts'

/** Reads the turns of the request's own session. */
export interface TurnSource {
  find: TurnFinder
  /** Yields all turns, whose common messages are read once. */
  readAll(): AsyncIterable<TurnOutline>
}

/** The output items of a turn, by id. */
type ItemsById = ReadonlyMap<string, OutputItem>

/**
 * The number of turns up to which each is read separately. A separate read assembles all messages of the turn's request;
 * reading the session assembles each message of the session once, but includes turns that are not referenced.
 */
const MAX_SEPARATE_READS = 4

/** Returns the id of the turn that the first item reference of an unchecked body names; undefined: there is none. */
export function findReferencedTurn(input: unknown): string | undefined {
  if (!Array.isArray(input)) return undefined
  const reference = (input as (Partial<InputItem> | null)[]).find((item) => item?.type === 'item_reference')
  return parseItemTurnId(reference?.id)
}

/**
 * Returns the input as items: text as one message, and each item reference as the item that it names. Each turn is read
 * once.
 * @param signal ends the reading
 * @throws ProxyError `response_not_found`, `invalid_request` for an item that is referenced twice; `signal.reason`
 */
export async function resolveInputItems(
  { input }: ResponsesRequest,
  turns: TurnSource,
  signal: AbortSignal,
): Promise<InputItem[]> {
  if (typeof input === 'string') return [{ type: 'message', role: 'user', content: input }]
  const items = (input ?? []) as InputItem[]
  const references = items.filter((item) => item.type === 'item_reference')
  if (references.length === 0) return items
  const turnIds = new Set(references.flatMap(({ id }) => parseItemTurnId(id) ?? []))
  const read = turnIds.size > MAX_SEPARATE_READS ? readFromSession : readSeparately
  const recorded = await read(turnIds, turns, signal)
  const resolve = createResolver(recorded)
  return items.flatMap((item, index) =>
    item.type === 'item_reference' ? resolve(item.id, `input.${index}.id`) : [item],
  )
}

/** Returns the turn id in the id of an item; undefined for an id of another form. */
function parseItemTurnId(id: unknown): string | undefined {
  return typeof id === 'string' ? /^[a-z]+_(.+)_\d+$/.exec(id)?.[1] : undefined
}

/**
 * Returns a function that resolves references. It rejects a second reference to an item, as OpenAI does: otherwise a
 * short body could repeat a long item thousands of times.
 *
 * A stream has an item for each text between tool calls, while the recorded completion has one text and one reasoning.
 * A reference to a later text is therefore resolved to nothing if the first one, which contains it, was referenced.
 */
function createResolver(recorded: ReadonlyMap<string, ItemsById>) {
  const resolved = new Set<unknown>()
  return (id: unknown, param: string): InputItem[] => {
    const item = recorded.get(parseItemTurnId(id) ?? '')?.get(id as string)
    if (item === undefined && !resolved.has(getFirstTextId(id)))
      throw new ProxyError('response_not_found', `Item with id '${String(id)}' not found.`, { param })
    if (resolved.has(id)) throw createInvalidError(`Duplicate item found with id ${String(id)}.`, param)
    resolved.add(id)
    return item === undefined ? [] : [item]
  }
}

/** Returns the id of the item that contains all text, or reasoning, of the turn; undefined for other kinds of items. */
function getFirstTextId(id: unknown): string | undefined {
  return typeof id === 'string' && /^(?:msg|rs)_/.test(id) ? id.replace(/(?<!\d)\d+$/, '0') : undefined
}

async function readSeparately(
  turnIds: ReadonlySet<string>,
  { find }: TurnSource,
  signal: AbortSignal,
): Promise<ReadonlyMap<string, ItemsById>> {
  const recorded = new Map<string, ItemsById>()
  for (const turnId of turnIds) {
    signal.throwIfAborted()
    const turn = await find(turnId)
    if (turn) recorded.set(turnId, indexItems(turn))
  }
  return recorded
}

async function readFromSession(
  turnIds: ReadonlySet<string>,
  { readAll }: TurnSource,
  signal: AbortSignal,
): Promise<ReadonlyMap<string, ItemsById>> {
  const recorded = new Map<string, ItemsById>()
  for await (const turn of readAll()) {
    signal.throwIfAborted()
    if (turnIds.has(turn.turnId)) recorded.set(turn.turnId, indexItems(turn))
    if (recorded.size === turnIds.size) break
  }
  return recorded
}

function indexItems(turn: OutputTurn): ItemsById {
  return new Map(isResponse(turn) ? buildOutputItems(turn).map((item) => [item.id, item]) : [])
}
