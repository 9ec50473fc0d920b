import { type ConnectionOptions, EngineConnection } from './connection.ts'

/** The base class of all clients of servers. It owns the connection. */
export abstract class ServerClient {
  protected readonly connection: EngineConnection

  constructor(options: ConnectionOptions) {
    this.connection = new EngineConnection(options)
  }

  get name(): string {
    return this.connection.name
  }

  endSession(sessionId: string): void {
    this.connection.endSession(sessionId)
  }

  async close(): Promise<void> {
    await this.connection.close()
  }
}
