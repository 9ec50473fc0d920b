/** What the routes of OpenAI's dialects have in common. */
import { openAiError } from '../../dialects/openai-error.ts'
import type { ProxyError } from '../../errors.ts'

export const OPENAI = {
  streamError: (error: ProxyError) => `data: ${JSON.stringify(openAiError(error))}\n\n`,
  errorBody: openAiError,
  // A comment, which clients skip.
  keepAlive: ': keep-alive\n\n',
  headers: (turnId: string) => ({ 'x-request-id': turnId }),
}
