import type { Logger } from '../../src/base/logger.ts'

export const silentLogger: Logger = {
  debug() {},
  info() {},
  warn() {},
  error() {},
  isLevelEnabled: () => false,
}
