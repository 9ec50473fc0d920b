/** The parts that the routes of OpenAI's dialects share. */
import type { ProxyError } from '../../../base/errors.ts'
import { buildOpenAiError } from '../../dialects/common/openai-error.ts'

export const OPENAI = {
  formatStreamError: (error: ProxyError) => `data: ${JSON.stringify(buildOpenAiError(error))}\n\n`,
  buildErrorBody: buildOpenAiError,
  // A comment: the SDKs ignore it, and their timers count bytes.
  keepAlive: () => ': keep-alive\n\n',
  getHeaders: (turnId: string) => ({ 'x-request-id': turnId }),
}
