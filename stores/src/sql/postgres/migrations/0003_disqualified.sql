-- The athletes who are disqualified: none of their efforts is on a board. It is a table of its own, and
-- not a column of the athletes, since these may be a view of an app's own table: such a view stays as it
-- is, and the app lists here whom it disqualifies, or makes a view of this one too.

CREATE TABLE disqualified (
    athlete_id bigint PRIMARY KEY
);

CREATE FUNCTION disqualified_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP <> 'DELETE' THEN
        PERFORM tell_of_athletes(array_agg(athlete_id)) FROM new_rows HAVING count(*) > 0;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        PERFORM tell_of_athletes(array_agg(athlete_id)) FROM old_rows HAVING count(*) > 0;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER athlete_disqualified AFTER INSERT ON disqualified
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('backstitch.tells', true) IS DISTINCT FROM 'no')
    EXECUTE FUNCTION disqualified_changed();
CREATE TRIGGER disqualified_athlete_changed AFTER UPDATE ON disqualified
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('backstitch.tells', true) IS DISTINCT FROM 'no')
    EXECUTE FUNCTION disqualified_changed();
CREATE TRIGGER athlete_reinstated AFTER DELETE ON disqualified
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
    WHEN (current_setting('backstitch.tells', true) IS DISTINCT FROM 'no')
    EXECUTE FUNCTION disqualified_changed();
CREATE TRIGGER disqualified_emptied BEFORE TRUNCATE ON disqualified
    EXECUTE FUNCTION refuse_truncate();
