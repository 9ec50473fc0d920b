/** Reads the preview of a session: its task and its last completion, in one line each. */
import { getTextsUpTo } from '../../../../protocol/canonical/conversation.ts'
import { getContentText } from '../../../../protocol/transcript/messages.ts'
import { isMainWork } from '../../../session/roles/agent-role.ts'
import { AgentRoleFinder } from '../../../session/roles/agent-role-finder.ts'
import type { SessionRecord, TurnOutline, TurnReader } from '../../../store/port/turn-store.ts'

/** The maximum number of turns of a session whose last completion is read, which requires reading all turns. */
const MAX_TURNS = 256
const MAX_CHARS = 300

const REMINDER = /<system-reminder>[\s\S]*?<\/system-reminder>/g

/**
 * Returns the last user message of the main role's first request, and the main role's last completion with a text.
 * Either is null if there is none.
 */
export async function readPreview(
  reader: Pick<TurnReader, 'readOutlines'>,
  { sessionId, turnCount }: SessionRecord,
): Promise<{ task: string | null; answer: string | null }> {
  const lines = new AgentRoleFinder()
  let task: string | null = null
  let completion: string | null = null
  for await (const turn of reader.readOutlines(sessionId)) {
    if (!isMainWork(lines.add(turn).agentRole)) continue
    task ??= getTask(turn)
    if (turnCount > MAX_TURNS) break
    if (turn.status === 'completed') completion = toOneLine(turn.completionText ?? '') ?? completion
  }
  return { task, answer: completion }
}

function getTask({ lastMessage, promptPieces }: TurnOutline): string | null {
  const messages = getTextsUpTo(lastMessage).map(
    (text) => JSON.parse(text) as { role?: unknown; content?: unknown },
  )
  const texts = messages.filter(({ role }) => role === 'user').map(({ content }) => getContentText(content))
  if (texts.length === 0) return toOneLine(promptPieces.join('').slice(0, MAX_CHARS))
  // Some agents add reminders before or after the task, as messages of the user.
  const tasks = texts.map((text) => toOneLine(text.replaceAll(REMINDER, '')))
  return tasks.findLast((task) => task !== null) ?? toOneLine(texts.at(-1)!)
}

function toOneLine(text: string): string | null {
  const line = text
    .slice(0, 4 * MAX_CHARS)
    .replaceAll(/\s+/g, ' ')
    .trim()
  return line === '' ? null : line.slice(0, MAX_CHARS).toWellFormed()
}
