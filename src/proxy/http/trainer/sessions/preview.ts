/** Reads the preview of a session: its task and its last completion, in one line each. */
import { getTextsUpTo } from '../../../../protocol/canonical/conversation.ts'
import { getContentText } from '../../../../protocol/transcript/messages.ts'
import { isMainWork } from '../../../session/roles/agent-role.ts'
import { AgentRoleFinder } from '../../../session/roles/agent-role-finder.ts'
import type { SessionRecord, TurnOutline, TurnReader } from '../../../store/port/turn-store.ts'

/** The maximum number of turns of a session whose last completion is read, which requires reading all turns. */
const MAX_TURNS = 256
const MAX_CHARS = 300

const REMINDER_START = '<system-reminder>'
const REMINDER_END = '</system-reminder>'

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
  const tasks = texts.map((text) => toOneLine(removeReminders(text)))
  return tasks.findLast((task) => task !== null) ?? toOneLine(texts.at(-1)!)
}

/** Removes all complete reminders. A pattern would take quadratic time if a text has many starts without an end. */
function removeReminders(text: string): string {
  const kept: string[] = []
  let at = 0
  for (;;) {
    const start = text.indexOf(REMINDER_START, at)
    const end = start === -1 ? -1 : text.indexOf(REMINDER_END, start)
    if (end === -1) return kept.join('') + text.slice(at)
    kept.push(text.slice(at, start))
    at = end + REMINDER_END.length
  }
}

function toOneLine(text: string): string | null {
  const line = text
    .slice(0, 4 * MAX_CHARS)
    .replaceAll(/\s+/g, ' ')
    .trim()
  return line === '' ? null : line.slice(0, MAX_CHARS).toWellFormed()
}
