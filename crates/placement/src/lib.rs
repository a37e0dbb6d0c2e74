//! Pure placement algorithms: which worker serves a connection, which OSDs hold a placement group.
